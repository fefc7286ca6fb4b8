"""A plotly figure that changes in place, without a reload, as sliders move."""

from pathlib import Path
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs


class Chart(anywidget.AnyWidget):
    """A figure, drawn by plotly in the page's own text colour.

    Plotly's ``FigureWidget`` saves five megabytes in every notebook that shows one, and replaces a
    figure trace by trace.

    Attributes:
        figure: plotly's JSON.
    """

    _esm = Path(__file__).with_name("chart.js")
    _css = Path(__file__).with_name("explore.css")
    figure = traitlets.Unicode().tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.on_msg(self._send_plotly)

    def show(self, figure: go.Figure) -> None:
        """Replace the figure."""
        self.figure = figure.to_json()

    def _send_plotly(self, _widget: object, content: Any, _buffers: object) -> None:
        """Answer the first chart of a page, which asks for the library."""
        if content == "plotly":
            self.send({}, [get_plotlyjs().encode()])
