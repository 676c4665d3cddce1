// The page: which panel shows which pictures and tables, in which order.
"use strict";
const drawn = [];
const MAIN = document.getElementById("main");

// A picture that is drawn to its container's width, now and whenever that changes.
function picture(draw, title) {
  const host = el("div", { class: "plot" }, title ? el("h4", {}, title) : null);
  const place = el("div", { role: "img" });
  host.append(place);
  drawn.push({ place, draw, width: 0 });
  return host;
}

function redraw() {
  for (const item of drawn) {
    const width = Math.floor(item.place.clientWidth);
    if (!width || width === item.width) continue;
    const svg = item.draw(width);
    item.place.replaceChildren(svg);
    item.place.setAttribute("aria-label", svg.getAttribute("aria-label") ?? "");
    item.width = width;
  }
}

function section(id, title, text, wide, ...content) {
  const node = el("section", { id, class: wide ? "wide" : "", "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), el("p", { class: "note" }, text), ...content);
  MAIN.append(node);
  return node;
}

const figure = (...pictures) => el("figure", {}, el("div", { class: "plots" }, ...pictures));
const agentColumn = ["agent", (d) => d.agent];
const many = NAMES.length > 1;

const advice = FOUND.advice.map((item) => el("li", {}, el("span", { class: "tag" }, item.rule.replaceAll("_", " ")), " ", item.agents.length ? el("strong", {}, `${item.agents.join(", ")}: `) : null, ...prose(item.text)));
section("advice", "Advice", "Plain rules with their reasons. What they recommend won in docs/evidence.md; none has seen a score of these agents.", true, advice.length ? el("ol", { class: "advice" }, ...advice) : "No rule applies.");

section("density", "Density", "How much of the model each agent changed.", false, figure(picture(densityBars)),
  tableView(survey(), [agentColumn, ["density", (d) => percent(d.density, 3)], ["changed", (d) => whole(d.changed)], ["unique", (d) => whole(d.unique)], ["shared", (d) => whole(d.shared)], ["rho", (d) => (d.overlap_unique_ratio == null ? "inf" : number(d.overlap_unique_ratio, 4))], ["scale", (d) => number(d.scale, 4)]], "density, overlap-unique ratio and scale"));

section("overlap", "Overlap", "Of each agent's changed elements: changed by it alone, or by how many agents in all.", false, agentLegend(many ? "by chance" : ""), figure(picture(overlapBars)),
  tableView(exactly(), [agentColumn, ["changed by", (d) => d.k], ["elements", (d) => whole(d.count)], ["share", (d) => percent(d.share, 2)], ["by chance", (d) => percent(d.chance, 2)]], "overlap"));

const chooser = el("select", { id: "measure", "aria-label": "What the heat maps show" }, ...Object.entries(MEASURES).map(([key, [label]]) => el("option", { value: key }, label)));
const scaleNote = el("div");
const showRamp = () => scaleNote.replaceChildren(ramp(Math.max(...FOUND.modules.map((row) => MEASURES[chooser.value][1](row) ?? 0), 1e-9)));
chooser.addEventListener("change", () => { showRamp(); drawn.filter((item) => item.heat).forEach((item) => (item.width = 0)); redraw(); });
section("modules", "Where in the model", "Layers downwards, kinds of module across; the same colours for all agents.", true, chooser, scaleNote,
  figure(...NAMES.map((name) => { const made = picture((width) => heatMap(width, name, chooser.value), name); drawn.at(-1).heat = true; return made; })),
  tableView(FOUND.modules, [["layer", (d) => layerName(d.layer)], ["kind", (d) => d.kind], agentColumn, ["elements", (d) => whole(d.elements)], ["changed", (d) => whole(d.changed)], ["density", (d) => percent(d.density, 2)], ["unique", (d) => whole(d.unique)], ["shared", (d) => whole(d.shared)], ["rho", (d) => (d.overlap_unique_ratio == null ? "inf" : number(d.overlap_unique_ratio))], ["below threshold", (d) => whole(d.below_threshold)]], "layers and kinds of module"));
showRamp();

if (many) {
  section("pairs", "Pairs of agents", "Elements that both changed, as a multiple of what chance gives: over the model, and within each module among weights of one size. 1 is chance.", true,
    figure(picture((width) => pairMatrix(width, "ratio"), "Against chance in the model"), picture((width) => pairMatrix(width, "ratio_within"), "Against chance among weights of one size")),
    tableView(FOUND.pairs, [["scope", (d) => d.scope], ["left", (d) => d.left], ["right", (d) => d.right], ["overlap", (d) => whole(d.overlap)], ["by chance", (d) => whole(Math.round(d.expected))], ["ratio", (d) => number(d.ratio)], ["z", (d) => number(d.z, 1)], ["ratio within", (d) => number(d.ratio_within)], ["z within", (d) => number(d.z_within, 1)], ["signs agree", (d) => percent(d.agree)], ["equal", (d) => percent(d.equal)], ["cosine", (d) => number(d.cosine)]], "pairs"));
}

const pairNames = FOUND.pairs.filter((row) => row.scope === "model").map((row) => `${row.left} and ${row.right}`);
const PAIRS = { domain: pairNames, range: pairNames.map((_, i) => `var(--a${i % 8})`) };
const pairLegend = () => el("ul", { class: "legend" }, ...pairNames.map((name, i) => el("li", {}, el("i", { style: `background:${PAIRS.range[i]}` }), name)));
// Sizes that few weights have tell nothing.
const common = (rows) => rows.filter((row) => row.elements == null || row.elements >= 1e-4 * FOUND.sampled_elements);
const enough = (row) => (row.expected >= 30 ? row.ratio : null);
section("bins", "By the size of the weight", "Small weights lie on a finer grid, so small updates reach them first. An overlap ratio near 1 within a size says that agents meet there by chance. Sizes of fewer than 1 in 10,000 weights, or of fewer than 30 elements shared by chance, stand in the tables alone.", true,
  figure(el("div", {}, agentLegend(), picture((width) => binLines(width, common(FOUND.bins), (d) => d.density, "changed (%)", AGENTS), "Density")),
    many ? el("div", {}, pairLegend(), picture((width) => binLines(width, FOUND.bin_pairs, enough, "overlap / chance", PAIRS, 1), "Overlap")) : null),
  tableView(FOUND.bins, [["2^", (d) => d.exponent], agentColumn, ["elements", (d) => whole(d.elements)], ["changed", (d) => whole(d.changed)], ["density", (d) => percent(d.density, 2)]], "density by size of weight"),
  many ? tableView(FOUND.bin_pairs, [["2^", (d) => d.exponent], ["left", (d) => d.left], ["right", (d) => d.right], ["overlap", (d) => whole(d.overlap)], ["by chance", (d) => number(d.expected, 1)], ["ratio", (d) => number(d.ratio)]], "overlap by size of weight") : null);

section("steps", "Size of the updates", `In steps of the stored ${FOUND.dtype}: how many representable numbers lie between the base's and the agent's.`, false, figure(picture(stepBars)),
  tableView(FOUND.steps, [agentColumn, ["steps", (d) => d.steps], ["elements", (d) => whole(d.elements)], ["share", (d) => percent(d.share, 2)]], "steps"),
  tableView(FOUND.totals, [agentColumn, ...Object.keys(FOUND.totals[0].magnitude).map((q) => [`|tau| ${100 * q} %`, (d) => number(d.magnitude[q])]), ["norm", (d) => number(d.norm)], ["norm² unique", (d) => percent(d.unique_norm_share)], ["shared: signs differ", (d) => percent(d.conflict)], ["shared: mean cancels", (d) => percent(d.cancelled)], ["tensors changed", (d) => `${d.tensors_changed} of ${d.tensors}`]], "sizes, norms and conflicts"));

section("lost", "Rounded away", "Changes that a merge makes and the output dtype, rounding to nearest, stores as the base's number. float32 loses nothing.", false, figure(picture(lostBars)),
  tableView(FOUND.lost, [["method", (d) => d.method], ["dtype", (d) => d.dtype], agentColumn, ["changed lost", (d) => percent(d.changed_lost, 2)], ["unique lost", (d) => percent(d.unique_lost, 2)]], "changes lost"));

section("rounding", "Does a rescale survive?", "Unique elements on which multiplying the change makes any difference after rounding to nearest. Dashed: each agent's scale under the chosen method.", true, agentLegend(),
  figure(...["BF16", "F16"].map((dtype) => picture((width) => survivalLines(width, dtype), `Stored as ${dtype}`))),
  tableView(FOUND.survival, [["dtype", (d) => d.dtype], agentColumn, ["multiplier", (d) => d.multiplier], ["survived", (d) => percent(d.survived, 2)]], "survival by multiplier"),
  tableView(FOUND.rescale, [["dtype", (d) => d.dtype], agentColumn, ["rescale", (d) => d.rescale], ["scale", (d) => number(d.scale, 4)], ["at least", (d) => percent(d.at_least)], ["at most", (d) => percent(d.at_most)]], "survival by RAM+ rescale"));

section("dilution", "Dilution", "What each method makes of a change that one agent alone made, and how much of each agent's whole change it is expected to keep, before rounding. 1 is as the agent left it.", true, agentLegend(),
  figure(picture((width) => dilutionDots(width, "multiplier", "multiplier of unique changes"), "Unique changes"), picture((width) => dilutionDots(width, "retention", "expected retention"), "The whole task vector")),
  tableView(FOUND.dilution, [["method", (d) => d.method], agentColumn, ["multiplier", (d) => number(d.multiplier)], ["retention", (d) => number(d.retention)], ["note", (d) => d.note, true]], "dilution"));

if (DATA.retention) {
  section("retention", "Kept by this merge", "<stored - base, tau> / <tau, tau> by region, as measured on the stored numbers.", true, figure(picture(retentionBars)),
    tableView(retained(), [agentColumn, ["region", (d) => d.region], ["retention", (d) => number(d.kept, 4)]], "retention"),
    tableView(NAMES.map((agent) => ({ agent, ...DATA.rounding[agent] })), [agentColumn, ["changes lost", (d) => percent(d.changed_lost, 2)], ["below threshold", (d) => percent(d.below_threshold, 2)], ["rescale survived", (d) => percent(d.rescale_survived, 2)]], "rounding of this merge"));
}

const settings = DATA.kind === "merge" ? DATA.recipe.method : DATA.method;
const facts = [
  ["method", Object.entries(settings).map(([key, value]) => (typeof value === "object" && value ? `${key} ${JSON.stringify(value)}` : `${key} ${value}`)).join(", ")],
  ["threshold", number(FOUND.threshold)],
  ["merged elements", whole(FOUND.elements)],
  ["sampled", FOUND.sampled_elements === FOUND.elements ? "all of them" : `${whole(FOUND.sampled_elements)} of them; density, overlap and the modules are counted on all`],
  ...Object.entries(DATA.sources).map(([name, source]) => [name, `${source.source} (${source.files.length} file${source.files.length > 1 ? "s" : ""}, ${whole(d3.sum(source.files, (file) => file.size))} bytes)`]),
  ...(DATA.output ? [["output", `${whole(DATA.output.bytes)} bytes of ${DATA.output.dtype}, rounding ${DATA.output.rounding}`]] : []),
  ...(DATA.versions ? [["versions", Object.entries(DATA.versions).map((pair) => pair.join(" ")).join(", ")]] : []),
  ...DATA.warnings.map((warning) => ["warning", warning]),
];
section("settings", "Settings and provenance", "What this page was made from.", true, el("dl", {}, ...facts.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)])));

document.getElementById("scope").textContent = `${whole(FOUND.elements)} merged elements of ${FOUND.dtype}; an element is changed where |agent − base| > ${FOUND.threshold}. ${DATA.kind === "merge" ? "After a merge." : "Before any merge."}`;
document.getElementById("print").addEventListener("click", () => print());
document.getElementById("theme").addEventListener("click", (event) => {
  const root = document.documentElement;
  const dark = (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  event.target.setAttribute("aria-pressed", String(!dark));
});
document.getElementById("tables").addEventListener("click", (event) => {
  const all = [...document.querySelectorAll("details")];
  const open = all.some((details) => !details.open);
  all.forEach((details) => (details.open = open));
  event.target.textContent = open ? "Close all tables" : "Open all tables";
  event.target.setAttribute("aria-pressed", String(open));
});
new ResizeObserver(redraw).observe(MAIN);
redraw();
document.documentElement.dataset.drawn = String(drawn.filter((item) => item.place.querySelector("svg")).length) + "/" + drawn.length;
