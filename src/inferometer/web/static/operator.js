// One operator, explained: where it stands under the roofs, what it moves, and every formula with the values put in.
import { given, post, Refused } from "./api.js";
import { h, s, show } from "./dom.js";
import { bytes, change, digits, percent, seconds, si, spaced } from "./format.js";
import { opWord } from "./kind.js";
import { withModel } from "./request.js";
import { tops } from "./ceilings.js";
import { setView, state } from "./state.js";
import { boundColor, boundWords, palette } from "./theme.js";

const ORIGINS = {
  measured: "● measured at this shape",
  fitted: "◐ fitted to measurements",
  assumed: "○ assumed: not measured",
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
      `${digits(op.intensity)} FLOP/B · ${si(rate, "FLOP/s")} achieved`,
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

// Now and in the pinned plan, side by side, with what became of it.
function compared(op, before) {
  const row = (word, text, value) => [word, text(value(op)), text(value(before)), change(value(op), value(before))];
  const rows = [
    row("time", seconds, (o) => o.seconds),
    row("share", percent, (o) => o.share),
    row(
      "FLOPs",
      (v) => si(v, "FLOP"),
      (o) => o.flops,
    ),
    row("bytes", bytes, (o) => o.bytes),
    row(
      "intensity",
      (v) => `${digits(v)} FLOP/B`,
      (o) => o.intensity,
    ),
    row("efficiency", percent, (o) => o.efficiency),
  ];
  return h(
    "table",
    { class: "compared" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", {}),
        ["now", "pinned", "change"].map((w) => h("th", { scope: "col" }, w)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map(([word, ...cells]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, word),
          cells.map((c) => h("td", {}, c)),
        ),
      ),
    ),
  );
}

const pair = (word, value, title) => h("div", { title }, h("dt", {}, word), h("dd", {}, value));

const figures = (op) =>
  h(
    "dl",
    { class: "pairs" },
    pair("time", seconds(op.seconds), `${digits(op.count)} calls`),
    pair("share", percent(op.share)),
    pair("calls", digits(op.count)),
    pair("FLOPs", si(op.flops, "FLOP")),
    pair("bytes", bytes(op.bytes)),
    pair("intensity", `${digits(op.intensity)} FLOP/B`),
    pair("efficiency", percent(op.efficiency), "roofline seconds over predicted seconds"),
  );

// Fill the panel of an operator, with its shapes as texts; formulas come a moment later from the server.
async function showOperator(host, op, { phase, shapes, before, close }) {
  const turn = ++asking;
  const color = boundColor(op.bound);
  const formulas = h("div", { class: "formulas", "aria-busy": "true" }, h("code", {}, op.formula));
  show(
    host,
    h(
      "header",
      {},
      h("h3", { id: "op-name" }, opWord(op)),
      h("button", { type: "button", class: "close", "aria-label": "Close", title: "Close (Esc)", onclick: close }, "✕"),
    ),
    h(
      "p",
      { class: "note" },
      `${spaced(op.kind)} · ${op.block} · ${phase}`,
      " ",
      h("span", { class: "bound", style: `background:${color}` }, boundWords(op.bound)),
    ),
    before?.seconds > 0 ? compared(op, before) : figures(op),
    h("p", { class: "origin" }, ORIGINS[op.origin] ?? op.origin),
    Object.keys(shapes ?? {}).length > 0 &&
      h(
        "p",
        { class: "shapes" },
        Object.entries(shapes).map(([word, shape]) => h("span", {}, `${word} ${shape}`)),
      ),
    miniature(op),
    traffic(op),
    h("h4", {}, "Formulas, with their values"),
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

const SHEET = matchMedia("(max-width: 860px)"); // a phone: the panel is a sheet over the page

// The panel beside the drawing: { element, from(key, byKeyboard), draw({ op, phase, shapes, before } or null) }
// draw tells the key of the operator that it was opened from when it closes: the focus goes back there.
export function operatorPanel() {
  const element = h("dialog", { class: "operator", "aria-labelledby": "op-name" });
  let opener = {}; // { key, byKeyboard }
  let shown = "";
  const close = () => setView({ op: null });
  const open = () => {
    const focused = document.activeElement;
    if (SHEET.matches) element.showModal();
    else element.show();
    if (!SHEET.matches && !opener.byKeyboard) focused?.focus({ preventScroll: true });
  };
  element.addEventListener("cancel", (event) => {
    event.preventDefault();
    close();
  });
  element.addEventListener("click", (event) => event.target === element && close()); // beside the sheet
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && element.open && !event.defaultPrevented && !element.matches(":modal")) close();
  });
  return {
    element,
    from: (key, byKeyboard) => (opener = { key, byKeyboard }),
    draw(what) {
      const now = what ? JSON.stringify([what, document.documentElement.dataset.theme]) : "";
      const inside = element.contains(document.activeElement);
      if (what && now !== shown) {
        showOperator(element, what.op, { ...what, close });
        if (inside) element.querySelector(".close").focus({ preventScroll: true });
      }
      shown = now;
      if (what && !element.open) open();
      if (what || !element.open) return null;
      element.close();
      return opener.key;
    },
  };
}
