/* A question as buttons. `place` holds it as MultipleChoice._page wrote it, which reads without this
script: question, choices, and folded the answer, its reason and a sentence on each wrong choice.

given: the choice made before, if any; made: called with the choice when there is one, and whether
it is right. Returns a function that answers. */
function asButtons(place, given, made) {
  const [choices, fold] = [place.querySelector("ul"), place.querySelector("details")];
  const [reason, code, wrong] = fold.querySelectorAll(":scope > p, :scope > details, :scope > ul");
  const right = [...reason.querySelectorAll("b")].map((choice) => choice.textContent);
  const why = new Map([...wrong.children].map((line) => {
    const choice = line.firstElementChild.textContent;
    return [choice, line.textContent.slice(choice.length + 2)];
  }));
  const tag = (name, attributes, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  let open = true;
  const buttons = new Map([...choices.children].map(({ textContent }) => {
    const button = tag("button", { type: "button" }, textContent);
    button.addEventListener("click", () => answer(textContent));
    return [textContent, button];
  }));
  const said = tag("div", { role: "status" });
  fold.replaceWith(said);
  choices.replaceWith(tag("div", { role: "group", "aria-label": "choices" }, ...buttons.values()));

  function answer(choice) {
    if (!open || !buttons.has(choice)) return;
    open = false;
    for (const [name, button] of buttons) {
      button.setAttribute("aria-disabled", "true"); // a disabled one would lose the focus
      const kind = right.includes(name) ? "right" : name === choice ? "wrong" : "";
      if (!kind) continue;
      button.className = kind;
      button.prepend(kind === "right" ? "✓ " : "✗ ");
    }
    const verdict = right.includes(choice) ? ["Right."] : ["Not so.", why.get(choice)];
    said.append(tag("p", {}, tag("b", {}, verdict[0]), " ", verdict[1] ?? ""), reason, code);
    made(choice, right.includes(choice));
  }

  answer(given);
  return answer;
}
