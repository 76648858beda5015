// What everything else is drawn with. Tokens and prompts are not trusted: text goes into the page by
// createTextNode alone, and nothing here ever parses HTML.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const clip = (x, low, high) => Math.max(low, Math.min(high, x));

// white space that can be seen
const visible = (text) =>
  text.replaceAll(" ", "\u2423").replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5");

const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);

function number(x) {
  if (x === 0) return "0";
  if (x >= 0.9995) return x === 1 ? "1" : x.toFixed(3);
  if (x < 0.001) return x.toExponential(0).replace("e-", "e\u2212");
  return x.toFixed(x < 0.1 ? 3 : 2);
}

function label(x, y, text, attributes) {
  return s("text", { x, y, ...attributes }, text);
}

let instances = 0;

// hatching, so that no colour carries a meaning alone
function patterns(id) {
  const stripe = (name, path, size) =>
    s(
      "pattern",
      { id: `${id}-${name}`, width: size, height: size, patternUnits: "userSpaceOnUse" },
      s("rect", { width: size, height: size, class: `fill-${name}`, opacity: 0.25 }),
      s("path", { d: path, class: `stroke-${name}`, "stroke-width": 1.3, fill: "none" }),
    );
  return s(
    "defs",
    {},
    stripe("draft", "M0,1.5 h5", 5),
    stripe("residual", "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2", 6),
    stripe("rejected", "M1,1.5 h1.5", 5),
    stripe("other", "M2,0 v4", 4),
  );
}

// how an area is filled that must be told apart from the others without colour
const filling = (kind, id) => kind === "target" || kind === "accepted" ? `var(--${kind})`
  : `url(#${id}-${kind})`;

const STYLE = `
.sw { --target: ${COLOURS.target}; --draft: ${COLOURS.draft}; --accepted: ${COLOURS.accepted};
  --rejected: ${COLOURS.rejected}; --residual: ${COLOURS.residual}; --other: ${COLOURS.other};
  --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --paper: #ffffff; --raised: #f6f8fa;
  --t-target: #005b91; --t-draft: #8a5a00; --t-accepted: #00704f; --t-rejected: #b04600;
  --t-residual: #9c3f76;
  container-type: inline-size; color: var(--ink); background: var(--paper);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; border: 1px solid var(--line);
  border-radius: 8px; padding: 12px 14px; box-sizing: border-box; max-width: 1280px;
  text-align: left; }
.sw.dark { color-scheme: dark; --ink: #e6edf3; --soft: #9da7b3; --line: #3d444d; --paper: #12161c; --raised: #1b2129;
  --t-target: #6cb6ec; --t-draft: #f0b429; --t-accepted: #3ecf9f; --t-rejected: #ff8f5a;
  --t-residual: #e79cc4; }
.sw *, .sw *::before { box-sizing: border-box; }
.sw:focus-visible, .sw :focus-visible { outline: 2px solid var(--t-target); outline-offset: 2px; }
.sw h3 { font-family: inherit; font-size: 14px; margin: 0 0 6px; padding: 0; font-weight: 650;
  color: var(--ink); }
.sw section { margin-top: 12px; min-width: 0; }
.sw .row { display: flex; flex-wrap: wrap; gap: 6px 10px; align-items: center; }
.sw .grow { flex: 1 1 220px; min-width: 0; }
.sw label { color: var(--soft); font-size: 12.5px; display: inline-flex; gap: 5px;
  align-items: center; }
.sw button, .sw select, .sw input, .sw textarea { font: inherit; font-size: 13px; color: var(--ink);
  background: var(--raised); border: 1px solid var(--line); border-radius: 6px; padding: 3px 8px;
  min-height: 28px; margin: 0; }
.sw button { cursor: pointer; min-width: 34px; flex: none; }
.sw button:hover { border-color: var(--soft); }
.sw button.main { background: var(--target); border-color: var(--target); color: #fff; }
.sw button:disabled { opacity: .55; cursor: default; }
.sw textarea { width: 100%; min-height: 46px; resize: vertical; font-family: var(--mono); }
.sw input[type=number] { width: 74px; }
.sw input[type=range] { flex: 1 1 120px; padding: 0; min-width: 80px; accent-color: var(--target); }
.sw { --mono: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.sw .stages { display: flex; list-style: none; margin: 0; padding: 0; font-size: 12.5px;
  color: var(--soft); }
.sw .stages li { margin: 0; }
.sw .stages li + li::before { content: "\u2192"; margin: 0 7px; display: inline-block; }
.sw .stages li[aria-current] { color: var(--ink); font-weight: 650; text-decoration: underline
  var(--mark) 3px; text-underline-offset: 4px; }
.sw .stages li[data-stage=draft] { --mark: var(--draft); }
.sw .stages li[data-stage=score], .sw .stages li[data-stage=bonus] { --mark: var(--target); }
.sw .stages li[data-stage=test] { --mark: var(--accepted); }
.sw .says { background: var(--raised); border-left: 4px solid var(--mark, var(--line));
  border-radius: 0 6px 6px 0; padding: 7px 11px; margin: 10px 0 0; min-height: 52px; }
.sw .says.accepted { --mark: var(--accepted); } .sw .says.rejected { --mark: var(--rejected); }
.sw .says.draft { --mark: var(--draft); } .sw .says.target { --mark: var(--target); }
.sw .says.wrong { --mark: var(--rejected); }
.sw .says.caption { --mark: var(--target); font-size: 17px; min-height: 4.5em; }
.sw .panes { display: grid; gap: 14px; grid-template-columns: minmax(0, 1fr); }
@container (min-width: 880px) {
  .sw .panes { grid-template-columns: minmax(0, 1.12fr) minmax(0, 1fr); } }
.sw .pane { border: 1px solid var(--line); border-radius: 8px; padding: 9px 11px; min-width: 0; }
.sw .panes.tall { grid-template-columns: minmax(0, 1fr); }
.sw .split { display: grid; gap: 6px 26px; grid-template-columns: minmax(0, 1fr); }
.sw .split.two { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.sw .scroll { overflow: auto; max-height: 560px; padding: 3px; }
.sw button svg { display: inline-block; vertical-align: -1px; fill: var(--ink); }
.sw svg { display: block; max-width: none; overflow: visible; }
.sw svg text { fill: var(--ink); font-size: 12px; }
.sw svg text.soft { fill: var(--soft); } .sw svg text.mono { font-family: var(--mono); }
.sw .fill-target { fill: var(--target); } .sw .fill-draft { fill: var(--draft); }
.sw .fill-accepted { fill: var(--accepted); } .sw .fill-rejected { fill: var(--rejected); }
.sw .fill-residual { fill: var(--residual); } .sw .fill-other { fill: var(--other); }
.sw .fill-ink { fill: var(--ink); } .sw .fill-none { fill: none; }
.sw .fill-paper { fill: var(--paper); }
.sw .stroke-target { stroke: var(--target); } .sw .stroke-draft { stroke: var(--draft); }
.sw .stroke-accepted { stroke: var(--accepted); } .sw .stroke-rejected { stroke: var(--rejected); }
.sw .stroke-residual { stroke: var(--residual); } .sw .stroke-other { stroke: var(--other); }
.sw .stroke-line { stroke: var(--line); } .sw .stroke-ink { stroke: var(--ink); }
.sw .stroke-soft { stroke: var(--soft); }
.sw .t-target { color: var(--t-target); } .sw .t-draft { color: var(--t-draft); }
.sw .t-accepted { color: var(--t-accepted); } .sw .t-rejected { color: var(--t-rejected); }
.sw .t-residual { color: var(--t-residual); }
.sw svg .t-target { fill: var(--t-target); } .sw svg .t-draft { fill: var(--t-draft); }
.sw svg .t-accepted { fill: var(--t-accepted); } .sw svg .t-rejected { fill: var(--t-rejected); }
.sw svg .t-residual { fill: var(--t-residual); }
.sw .text { font: 13.5px/1.75 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere;
  margin: 0; max-height: 190px; overflow-y: auto; }
.sw .race { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 10px;
  align-items: center; font-size: 12.5px; margin-top: 6px; }
.sw .race i { display: block; height: 10px; border-radius: 3px; min-width: 1px; }
.sw .race .fast { background: var(--accepted); } .sw .race .plain { background: var(--other); }
.sw .token { border-radius: 3px; padding: 1px 0; border-bottom: 2px solid transparent; }
.sw .token.prompt { color: var(--soft); }
.sw .token.accepted { border-bottom-color: var(--accepted);
  background: color-mix(in srgb, var(--accepted) 16%, transparent); }
.sw .token.bonus { border-bottom: 3px double var(--target);
  background: color-mix(in srgb, var(--target) 18%, transparent); }
.sw .token.now { font-weight: 700; }
.sw .legend { display: flex; flex-wrap: wrap; gap: 3px 14px; font-size: 12px; color: var(--soft);
  margin: 6px 0 0; padding: 0; list-style: none; }
.sw .legend li { margin: 0; } .sw .legend svg { display: inline-block; vertical-align: -2px;
  margin-right: 5px; }
.sw .soft { color: var(--soft); font-size: 12.5px; } .sw p { margin: 4px 0; }
.sw .math { font-family: var(--mono); font-size: 13px; margin: 6px 0 2px; }
.sw .verdict { font-weight: 700; }
.sw g.node { cursor: pointer; } .sw g.node:focus { outline: none; }
.sw g.node:focus-visible rect.box { stroke: var(--t-target); stroke-width: 3.5; }
.sw g.node.chosen rect.box { stroke: var(--ink); stroke-width: 3; }
.sw details { margin-top: 8px; color: var(--soft); font-size: 12.5px; }
.sw summary { cursor: pointer; }
.sw .paths { border-collapse: collapse; font-size: 12.5px; margin-top: 8px; }
.sw .paths td, .sw .paths th { padding: 2px 12px 2px 0; text-align: right; font-weight: 400;
  border: 0; background: none; }
.sw .paths th { color: var(--soft); } .sw .paths td.mono { font-family: var(--mono);
  text-align: left; }
`;
