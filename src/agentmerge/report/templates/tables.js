// Numbers as text, and rows as tables. Knows no chart.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const FOUND = DATA.findings;
const NAMES = FOUND.agents;
const COLOURS = NAMES.map((_, i) => `var(--a${i % 8})`);

const percent = (x, digits = 1) => (x == null ? "–" : `${(100 * x).toFixed(digits)}%`);
const whole = (x) => (x == null ? "–" : x.toLocaleString("en"));
const number = (x, digits = 3) => {
  if (x == null) return "–";
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6)) return x.toExponential(2);
  return x.toLocaleString("en", { maximumFractionDigits: digits });
};

// An element with attributes and children; text is text, never markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child != null));
  return node;
}

// Columns: [title, row => text, is it prose].
function table(rows, columns, caption) {
  const head = el("tr", {}, ...columns.map(([title, , prose]) => el("th", { scope: "col", class: prose ? "text" : "" }, title)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, text, prose]) => el("td", { class: prose ? "text" : "" }, String(text(row))))));
  const inner = el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, inner);
}

// Built when it is first opened, so that thousands of rows cost nothing before.
function tableView(rows, columns, caption) {
  const details = el("details", {}, el("summary", {}, `Table: ${caption} (${rows.length} rows)`));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(table(rows, columns, caption));
  });
  return details;
}

function agentLegend(...further) {
  const items = NAMES.map((name, i) => el("li", {}, el("i", { style: `background:${COLOURS[i]}` }), name));
  return el("ul", { class: "legend" }, ...items, ...further.map((text) => el("li", {}, el("i", { class: "tick" }), text)));
}

// Code between backticks in advice.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
}
