// One operator, explained: where it stands under the roofs, what it moves, and every formula with the values put in.
import { given, post, Refused } from "./api.js";
import { h, s, show } from "./dom.js";
import { bytes, change, digits, percent, seconds, si, size, spaced } from "./format.js";
import { withModel } from "./request.js";
import { tops } from "./ceilings.js";
import { state } from "./state.js";
import { boundColor, boundWords, palette } from "./theme.js";

const ORIGINS = {
  measured: "● measured at this shape",
  fitted: "◐ fitted to measurements",
  assumed: "○ assumed: nobody measured it",
};
const UNITS = {
  flops: "FLOP",
  weights: "B",
  reads: "B",
  writes: "B",
  kv_reads: "B",
  kv_writes: "B",
  sent: "B",
  stored: "B",
};
const CLASSES = [
  ["load_weight", "weights read", "blue"],
  ["load_act", "activations read", "sky"],
  ["store_act", "activations written", "sky"],
  ["load_kv_cache", "KV cache read", "orange"],
  ["store_kv_cache", "KV cache written", "orange"],
  ["sent", "sent to other GPUs", "green"],
];

// A small roofline with the operator's dot.
function miniature(op) {
  const p = palette();
  const roofs = tops(state.report);
  const band = state.report.device.memory_bandwidth;
  if (!(op.flops > 0 && op.bytes > 0) || !roofs.length)
    return h("p", { class: "note" }, "No arithmetic or no memory traffic, so no dot on the roofline.");
  const [wide, high] = [330, 150];
  const peak = roofs[0].flops;
  const rate = op.flops / op.seconds;
  const span = [
    Math.log10(Math.min(op.intensity / 3, peak / band / 30)),
    Math.log10(Math.max(op.intensity * 3, (peak / band) * 10)),
  ];
  const rise = [Math.log10(Math.min(rate / 3, peak / 1e3)), Math.log10(peak * 2)];
  const x = (v) => 8 + ((Math.log10(v) - span[0]) / (span[1] - span[0])) * (wide - 16);
  const y = (v) => high - 20 - ((Math.log10(v) - rise[0]) / (rise[1] - rise[0])) * (high - 30);
  const start = Math.max(10 ** span[0], 10 ** rise[0] / band);
  const color = boundColor(op.bound);
  return s(
    "svg",
    {
      viewBox: `0 0 ${wide} ${high}`,
      class: "mini",
      role: "img",
      "aria-label": `${digits(op.intensity)} FLOP per byte, ${si(rate, "FLOP/s")}`,
    },
    s("path", {
      d: `M${x(start)},${y(start * band)}L${x(peak / band)},${y(peak)}L${x(10 ** span[1])},${y(peak)}`,
      fill: "none",
      stroke: p.ink,
      "stroke-width": 1.4,
    }),
    roofs.slice(1).map((roof) =>
      s("path", {
        d: `M${x(roof.flops / band)},${y(roof.flops)}L${x(10 ** span[1])},${y(roof.flops)}`,
        stroke: p.muted,
        "stroke-width": 1,
      }),
    ),
    s("path", {
      d: `M${x(op.intensity)},${y(rate)}V${y(Math.min(peak, op.intensity * band))}`,
      stroke: color,
      "stroke-dasharray": "3 3",
    }),
    s("circle", { cx: x(op.intensity), cy: y(rate), r: 5.5, fill: color }),
    s(
      "text",
      { x: wide - 8, y: y(peak) - 5, "text-anchor": "end", "font-size": 10, fill: p.muted },
      `${roofs[0].name} ${si(peak, "FLOP/s")}`,
    ),
    s(
      "text",
      { x: 8, y: high - 5, "font-size": 10, fill: p.muted },
      `${digits(op.intensity)} FLOP/B · ${si(rate, "FLOP/s")} reached`,
    ),
  );
}

function traffic(op) {
  const shown = CLASSES.filter(([key]) => op[key] > 0);
  const most = Math.max(...shown.map(([key]) => op[key]), 1);
  return h(
    "table",
    { class: "traffic" },
    h(
      "tbody",
      {},
      shown.map(([key, word, color]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, word),
          h("td", {}, h("i", { style: `width:${(op[key] / most) * 100}%;background:${palette()[color]}` })),
          h("td", { class: "number" }, bytes(op[key])),
        ),
      ),
    ),
  );
}

function line(one) {
  const unit = UNITS[one.quantity];
  const result = unit ? si(one.result, unit) : digits(one.result);
  const values = Object.entries(one.values).map(([name, value]) => h("span", {}, `${name} = ${digits(value, 6)}`));
  return h(
    "div",
    { class: "line" },
    h("b", {}, spaced(one.quantity)),
    h("code", {}, `${one.formula}`),
    h("p", { class: "values" }, values),
    h("output", {}, `= ${result}`),
  );
}

function explained(op) {
  return [
    h("p", { class: "note" }, `One of ${digits(op.count)} calls in a step, on one GPU`),
    op.lines.map(line),
    h(
      "dl",
      { class: "pairs" },
      [
        ["computing", op.compute_seconds],
        ["memory", op.memory_seconds],
        ["links", op.link_seconds],
        ["roofline", op.roofline_seconds],
        ["predicted", op.seconds],
      ]
        .filter(([, value]) => value > 0)
        .map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, seconds(value)))),
    ),
    op.note && h("p", { class: "note" }, op.note),
  ];
}

async function explanation(op, phase) {
  const all = given
    ? (given.explanations ?? [])
    : await post("/api/explain", { plan: withModel(state.plan), op: op.name, phase });
  const list = Array.isArray(all) ? all : (all.explanations ?? []);
  return list
    .filter((e) => e.phase === phase && e.op === op.name)
    .sort((a, b) => (b.block === op.block) - (a.block === op.block))[0];
}

let asking = 0;

// Fill the side panel; formulas come a moment later from the server.
export async function showOperator(host, op, phase, before, close) {
  const turn = ++asking;
  const color = boundColor(op.bound);
  const formulas = h("div", { class: "formulas", "aria-busy": "true" }, h("code", {}, op.formula));
  const pair = (word, value, title) => h("div", { title }, h("dt", {}, word), h("dd", {}, value));
  const moved = before && change(op.seconds, before.seconds);
  show(
    host,
    h(
      "header",
      {},
      h("h3", { id: "op-name" }, op.name),
      h("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "✕"),
    ),
    h(
      "p",
      { class: "note" },
      `${spaced(op.kind)} · ${op.block} · ${phase}`,
      " ",
      h("span", { class: "bound", style: `background:${color}` }, boundWords(op.bound)),
    ),
    h(
      "dl",
      { class: "pairs" },
      pair("time", seconds(op.seconds), `${digits(op.count)} calls`),
      pair("share", percent(op.share)),
      pair("calls", digits(op.count)),
      moved && pair("pinned", `${seconds(before.seconds)} (${moved})`),
      pair("FLOPs", si(op.flops, "FLOP")),
      pair("bytes", bytes(op.bytes)),
      pair("intensity", `${digits(op.intensity)} FLOP/B`),
      pair("efficiency", percent(op.efficiency), "roofline seconds over predicted seconds"),
    ),
    h("p", { class: "origin" }, ORIGINS[op.origin] ?? op.origin),
    Object.entries(op.shape).length > 0 &&
      h(
        "p",
        { class: "shapes" },
        Object.entries(op.shape).map(([word, shape]) => h("span", {}, `${word} ${size(shape)}`)),
      ),
    miniature(op),
    traffic(op),
    h("h4", {}, "Formulas, with the values put in"),
    formulas,
  );
  try {
    const formulasOfOp = await explanation(op, phase);
    if (turn === asking && formulasOfOp) show(formulas, explained(formulasOfOp));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (turn === asking) formulas.append(h("p", { class: "note" }, error.message));
  }
  formulas.removeAttribute("aria-busy");
}
