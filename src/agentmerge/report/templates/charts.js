// The pictures of what was changed: each takes a width and gives an SVG. Knows no page.
"use strict";
const AGENTS = { domain: NAMES, range: COLOURS };
const STYLE = { fontSize: "12px", fontFamily: "inherit", background: "none", color: "var(--ink)" };
const longest = (texts) => Math.min(150, 18 + 7.2 * Math.max(1, ...texts.map((text) => String(text).length)));
const PERCENT = { tickFormat: (x) => `${+(100 * x).toFixed(1)}`, percent: false };
const survey = () => NAMES.map((agent) => ({ agent, ...DATA.survey.agents[agent] }));

function plot(label, width, options) {
  return Plot.plot({ style: STYLE, width, ariaLabel: label, ...options });
}

function densityBars(width) {
  return plot("Density per agent", width, {
    height: 66 + 30 * NAMES.length, marginLeft: longest(NAMES), marginRight: 60, marginBottom: 42,
    x: { label: "changed elements (%) →", grid: true, ...PERCENT, nice: true }, y: { label: null, domain: NAMES }, color: AGENTS,
    marks: [
      Plot.barX(survey(), { x: "density", y: "agent", fill: "agent" }),
      Plot.text(survey(), { x: "density", y: "agent", text: (d) => percent(d.density, 2), dx: 6, textAnchor: "start" }),
      Plot.ruleX([0]),
    ],
  });
}

const exactly = () => survey().flatMap((row) => row.changed_by_exactly.map((count, k) => ({
  agent: row.agent, k: k ? `${k + 1} agents` : "alone", share: row.changed ? count / row.changed : null, count,
  chance: FOUND.totals.find((x) => x.agent === row.agent).expected_exactly[k],
})));

function overlapBars(width) {
  const rows = exactly();
  return plot("Changed elements by how many agents changed them", width, {
    height: 64 + NAMES.length * (24 + 26 * NAMES.length), marginLeft: longest(["8 agents"]), marginRight: 52, marginTop: 22, marginBottom: 42,
    x: { label: "of the agent's changed elements (%) →", grid: true, ...PERCENT }, y: { label: null, domain: ["alone", ...NAMES.slice(1).map((_, i) => `${i + 2} agents`)] },
    fy: { domain: NAMES, axis: null, padding: 0.2 }, color: AGENTS,
    marks: [
      Plot.barX(rows, { x: "share", y: "k", fy: "agent", fill: "agent", fillOpacity: (d) => (d.k === "alone" ? 1 : 0.6) }),
      Plot.tickX(rows, { x: "chance", y: "k", fy: "agent", stroke: "currentColor", strokeWidth: 3 }),
      Plot.text(rows, { x: (d) => Math.max(d.share, d.chance ?? 0), y: "k", fy: "agent", text: (d) => percent(d.share), dx: 6, textAnchor: "start" }),
      Plot.text(NAMES, { fy: (d) => d, text: (d) => d, frameAnchor: "top-left", dy: -17, fontWeight: 600 }),
      Plot.ruleX([0]),
    ],
  });
}

const MEASURES = {
  density: ["changed (%)", (d) => d.density],
  unique: ["unique of the changed (%)", (d) => (d.changed ? d.unique / d.changed : null)],
  hidden: ["differing below the threshold (%)", (d) => (d.elements ? d.below_threshold / d.elements : null)],
};
const layerName = (layer) => (layer < 0 ? "outside" : String(layer));

function heatMap(width, agent, measure) {
  const [label, value] = MEASURES[measure];
  const rows = FOUND.modules.filter((row) => row.agent === agent);
  const kinds = FOUND.kinds;
  const layers = [...new Set(FOUND.modules.map((row) => row.layer))].sort((a, b) => a - b);
  const top = Math.max(...FOUND.modules.map((row) => value(row) ?? 0), 1e-9);
  const every = Math.ceil(layers.length / 20);
  return plot(`${agent}: ${label} by layer and kind of module`, width, {
    height: 110 + Math.max(14, Math.min(26, 520 / layers.length)) * layers.length, marginLeft: 58, marginBottom: 92, padding: 0.04,
    x: { domain: kinds, label: null, tickRotate: -50 },
    y: { domain: layers, label: "layer", tickFormat: layerName, ticks: layers.filter((x, i) => i % every === 0) },
    color: { type: "linear", scheme: "viridis", domain: [0, top] },
    marks: [
      Plot.cell(rows, { x: "kind", y: "layer", fill: value, tip: { fill: "var(--bg)", stroke: "var(--line)" },
        title: (d) => `layer ${layerName(d.layer)}, ${d.kind}\n${label}: ${percent(value(d), 2)}\n${whole(d.changed)} of ${whole(d.elements)} changed` }),
    ],
  });
}

function ramp(top) {
  const stops = d3.range(0, 1.01, 0.1).map((t) => d3.interpolateViridis(t)).join(",");
  return el("p", { class: "note" }, "0%", el("span", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), percent(top));
}

function pairMatrix(width, field) {
  const rows = FOUND.pairs.filter((row) => row.scope === "model");
  const both = rows.flatMap((row) => [{ ...row, x: row.left, y: row.right }, { ...row, x: row.right, y: row.left }]);
  const bound = Math.max(0.6, ...both.map((row) => Math.abs(Math.log2(row[field] || 1))));
  const side = Math.min(width, 110 + 90 * NAMES.length);
  return plot("Overlap of each pair against chance", side, {
    height: side * 0.85, marginLeft: longest(NAMES), marginBottom: 40, padding: 0.04, x: { domain: NAMES, label: null }, y: { domain: NAMES, label: null },
    color: { type: "diverging", scheme: "PuOr", pivot: 0, domain: [-bound, bound], reverse: true },
    marks: [
      Plot.cell(both, { x: "x", y: "y", fill: (d) => (d[field] ? Math.log2(d[field]) : 0), tip: { fill: "var(--bg)", stroke: "var(--line)" },
        title: (d) => `${d.x} and ${d.y}\n${whole(d.overlap)} shared, ${whole(Math.round(d.expected))} by chance\nwithin weights of one size: ${number(d.ratio_within)}` }),
      Plot.text(both, { x: "x", y: "y", text: (d) => (d[field] == null ? "–" : d[field].toFixed(2)), fill: (d) => (Math.abs(Math.log2(d[field] || 1)) > 0.6 * bound ? "white" : "#1b1f24"), fontSize: 14 }),
    ],
  });
}

function binLines(width, rows, value, label, colour, reference) {
  const kept = rows.filter((row) => value(row) != null);
  return plot(label, width, {
    height: 260, marginLeft: 48, marginRight: 16, marginBottom: 44, color: colour,
    x: { label: "|base| at least 2^x →", ticks: 6, tickFormat: (x) => (Number.isInteger(x) ? String(x) : "") },
    y: { label: `↑ ${label}`, grid: true, ...(reference == null ? { ...PERCENT, zero: true } : {}) },
    marks: [
      reference == null ? null : Plot.ruleY([reference], { stroke: "var(--soft)", strokeDasharray: "4 3" }),
      Plot.lineY(kept, { x: "exponent", y: value, stroke: (d) => d.agent ?? `${d.left} and ${d.right}`, strokeWidth: 2, marker: "dot" }),
    ],
  });
}

function stepBars(width) {
  return plot("Size of updates in steps of the stored dtype", width, {
    height: 64 + NAMES.length * 150, marginLeft: 44, marginRight: 52, marginTop: 22, marginBottom: 42,
    x: { label: "of the agent's changed elements (%) →", grid: true, ...PERCENT }, y: { label: null, domain: ["1", "2", "3-4", "5-8", "9+"] },
    fy: { domain: NAMES, axis: null, padding: 0.2 }, color: AGENTS,
    marks: [
      Plot.barX(FOUND.steps, { x: "share", y: "steps", fy: "agent", fill: "agent" }),
      Plot.text(FOUND.steps, { x: "share", y: "steps", fy: "agent", text: (d) => percent(d.share), dx: 6, textAnchor: "start" }),
      Plot.text(NAMES, { fy: (d) => d, text: (d) => d, frameAnchor: "top-left", dy: -17, fontWeight: 600 }),
      Plot.ruleX([0]),
    ],
  });
}
