"""A page must not lack names of controls, contrast of text, and room for fingers."""

NAMELESS = """() => [...document.querySelectorAll('button, input, select, canvas')]
    .filter(e => e.checkVisibility() && !e.ariaHidden)
    .filter(e => !(e.ariaLabel || e.textContent.trim() || e.title || e.labels?.length))
    .map(e => e.outerHTML.slice(0, 120))"""
FAINT = """() => {
    const parse = text => { // any CSS colour to sRGB, as the browser paints it
        const pen = new OffscreenCanvas(1, 1).getContext('2d');
        pen.fillStyle = text;
        pen.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], [R, G, B]) => [r, g, b].map((c, n) => c * a + [R, G, B][n] * (1 - a));
    const light = color => color.map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const behind = e => {
        const own = e ? parse(getComputedStyle(e).backgroundColor) : [0, 0, 0, 0];
        if (!e) return dark ? [18, 18, 18] : [255, 255, 255];
        return own[3] === 1 ? own.slice(0, 3) : over(own, behind(e.parentElement));
    };
    const texts = [...document.querySelectorAll('main *, body *')].filter(e => e.checkVisibility()
        && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
        && !e.closest('script, style, option, [disabled]')
        && getComputedStyle(e).backgroundImage === 'none'
        && getComputedStyle(e.parentElement).backgroundImage === 'none');
    return texts.map(e => {
        const back = behind(e), ink = over(parse(getComputedStyle(e).color), back);
        const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40), e.className];
    }).filter(([ratio]) => ratio < 4.5);
}"""
"""Text below 4.5:1, but for text on hatchings, whose colours the page does not say in one."""
SMALL = """() => [...document.querySelectorAll('.tray button, .actions button, .levels button')]
    .filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 30)
    .map(e => e.outerHTML.slice(0, 120))"""
