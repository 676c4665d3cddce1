// The pictures of what becomes of changes: rounding, dilution, retention. Knows no page.
"use strict";
function survivalLines(width, dtype) {
  const rows = FOUND.survival.filter((row) => row.dtype === dtype);
  const scales = survey().filter((row) => row.scale != null && row.scale > 1);
  return plot(`Unique elements on which a multiplier survives storage as ${dtype}`, width, {
    height: 280, marginLeft: 48, marginRight: 16, marginBottom: 44, color: AGENTS,
    x: { label: "multiplier of unique changes →", type: "log", ticks: width < 420 ? [1.1, 1.2, 1.5, 2, 3] : [1.05, 1.1, 1.2, 1.3, 1.5, 2, 3], tickFormat: (x) => String(x) },
    y: { label: "↑ survived (% of unique elements)", grid: true, domain: [0, 1], ...PERCENT },
    marks: [
      Plot.ruleX(scales, { x: "scale", stroke: "agent", strokeDasharray: "4 3", strokeWidth: 1.5 }),
      Plot.lineY(rows, { x: "multiplier", y: "survived", stroke: "agent", strokeWidth: 2, marker: "dot" }),
    ],
  });
}

function lostBars(width) {
  const names = { task_arithmetic: "mean of N", ram: "RAM" };
  const rows = FOUND.lost.filter((row) => row.dtype !== "F32").map((row) => ({ ...row, y: `${names[row.method]}, ${row.dtype}` }));
  const order = [...new Set(rows.map((row) => row.y))];
  return plot("Changes lost by the output dtype", width, {
    height: 64 + NAMES.length * (24 + 26 * order.length), marginLeft: longest(order), marginRight: 52, marginTop: 22, marginBottom: 42,
    x: { label: "changed elements stored as the base (%) →", grid: true, ...PERCENT, nice: true }, y: { label: null, domain: order },
    fy: { domain: NAMES, axis: null, padding: 0.2 }, color: AGENTS,
    marks: [
      Plot.barX(rows, { x: "changed_lost", y: "y", fy: "agent", fill: "agent" }),
      Plot.text(rows, { x: "changed_lost", y: "y", fy: "agent", text: (d) => percent(d.changed_lost), dx: 6, textAnchor: "start" }),
      Plot.text(NAMES, { fy: (d) => d, text: (d) => d, frameAnchor: "top-left", dy: -17, fontWeight: 600 }),
      Plot.ruleX([0]),
    ],
  });
}

function dilutionDots(width, field, label) {
  const methods = [...new Set(FOUND.dilution.map((row) => row.method))];
  const rows = FOUND.dilution.filter((row) => row[field] != null);
  return plot(label, width, {
    height: 70 + 26 * methods.length, marginBottom: 42, marginLeft: Math.min(170, longest(methods) + 20), marginRight: 20, color: AGENTS,
    x: { label: `${label} →`, grid: true, zero: true }, y: { domain: methods, label: null, tickFormat: (m) => (width < 420 ? m.replace("ram_plus, rescale auto", "ram_plus auto").replace("task_arithmetic", "task arith.").replace("calibrate around ram", "calibrated ram") : m) },
    marks: [
      Plot.ruleX([1], { stroke: "var(--soft)", strokeDasharray: "4 3" }),
      ...NAMES.map((agent, i) => Plot.dot(rows.filter((row) => row.agent === agent), { x: field, y: "method", fill: "agent", r: 4.5, dy: (i - (NAMES.length - 1) / 2) * 5, tip: { fill: "var(--bg)", stroke: "var(--line)" }, title: (d) => `${d.method}, ${d.agent}\n${label}: ${number(d[field])}\n${d.note}` })),
    ],
  });
}

const retained = () => NAMES.flatMap((agent) => ["unique", "shared", "changed"].map((region) => ({ agent, region, kept: DATA.retention[agent][region] })));

function retentionBars(width) {
  return plot("Retention of each agent in the stored merge", width, {
    height: 64 + NAMES.length * 104, marginLeft: 72, marginRight: 52, marginTop: 22, marginBottom: 42,
    x: { label: "retention in the stored merge →", grid: true, zero: true }, y: { label: null, domain: ["unique", "shared", "changed"] },
    fy: { domain: NAMES, axis: null, padding: 0.2 }, color: AGENTS,
    marks: [
      Plot.barX(retained(), { x: "kept", y: "region", fy: "agent", fill: "agent" }),
      Plot.text(retained(), { x: "kept", y: "region", fy: "agent", text: (d) => number(d.kept, 2), dx: 6, textAnchor: "start" }),
      Plot.text(NAMES, { fy: (d) => d, text: (d) => d, frameAnchor: "top-left", dy: -17, fontWeight: 600 }),
      Plot.ruleX([0]), Plot.ruleX([1], { stroke: "var(--soft)", strokeDasharray: "4 3" }),
    ],
  });
}
