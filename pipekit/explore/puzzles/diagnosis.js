// The last level: a trace that the engine recorded, and questions about it.

import { element, pressed } from "./elements.js";

export function diagnosis(trace, solve) {
  const shown = element("div", { class: "trace" });
  pipekitCanvas.draw([trace.shown], shown, []);
  const questions = element("div");
  const asked = (number) => {
    if (number === trace.questions.length) {
      solve();
      questions.append(element("p", { class: "verdict solved" }, element("b", {}, "Solved. "), trace.teaches));
      return;
    }
    questions.append(question(trace.questions[number], () => asked(number + 1)));
  };
  asked(0);
  return element("div", {},
    element("p", {}, trace.goal), shown, element("p", { class: "provenance" }, trace.provenance), questions);
}

function question({ text, answers }, onward) {
  const said = element("p", { class: "said", role: "status" });
  const choose = ({ says, right }) => {
    said.textContent = says;
    said.classList.toggle("wrong", !right);
    if (!right) return;
    for (const each of buttons) each.disabled = true;
    onward();
  };
  const buttons = answers.map((answer) => pressed(answer.text, () => choose(answer)));
  return element("div", {}, element("p", {}, element("b", {}, text)), element("div", { class: "actions" }, ...buttons), said);
}
