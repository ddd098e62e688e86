// Tab: the network and its operators.
import { drawing } from "./chart.js";
import { find, h, show } from "./dom.js";
import { folded, SMALL } from "./fold.js";
import { capital, change, percent, seconds } from "./format.js";
import { alike, network, titleOf } from "./network.js";
import { strength } from "./node.js";
import { operatorPanel } from "./operator.js";
import { opWord, phaseWord } from "./kind.js";
import { keyOf, phaseOf, phaseSwitch } from "./phases.js";
import { setView, state } from "./state.js";
import { boundColor, boundWords, palette, tint } from "./theme.js";
import { viewport } from "./viewport.js";

const BESIDE = 1.6; // blocks of layers stand side by side where that is at most so many times as wide as the frame

// The same operator of the pinned report: by block and name, else by name alone.
export function twin(op, phase) {
  const ops = state.before?.phases[phase]?.ops;
  if (!ops) return null;
  const key = keyOf(op, state.report.phases[phase].ops);
  return ops.find((o) => keyOf(o, ops) === key) ?? ops.find((o) => o.name === op.name && o.kind === op.kind) ?? null;
}

// Operators of a block that took time in the pinned plan and do not now: [{ name, count, seconds }]
function onlyPinned(block, phase) {
  const [rows, before] = [state.report.phases[phase].ops, state.before?.phases[phase]?.ops];
  const blocks = state.before?.graph?.[phase]?.blocks ?? [];
  const other = blocks.find((b) => b.name === block.name);
  if (!before || !other || state.before.model.name !== state.report.model.name) return [];
  const now = new Set(rows.filter((op) => op.block === block.name && op.seconds > 0).map((op) => keyOf(op, rows)));
  const then = new Set(other.nodes.filter((n) => n.kind === "op").map((n) => before[n.row]));
  const gone = new Map();
  for (const op of [...then].filter((one) => !now.has(keyOf(one, before)))) {
    const { count, seconds: sum } = gone.get(op.name) ?? { count: 0, seconds: 0 };
    gone.set(op.name, { name: op.name, count: count + 1, seconds: sum + op.seconds });
  }
  return [...gone.values()];
}

function againstPinned(phase) {
  const [now, then] = [state.report.phases[phase], state.before?.phases[phase]];
  return then ? ` · ${change(now.seconds, then.seconds)} against ${seconds(then.seconds)} pinned` : "";
}

const switched = (name, word, title, on, act) =>
  h(
    "label",
    { class: "tick", title },
    h("input", {
      type: "checkbox",
      name,
      checked: on,
      "data-key": name,
      onchange: (event) => act(event.target.checked),
    }),
    word,
  );

// Colours and what they say: of bounds, or of the difference to the pinned plan.
function legendOf(ops) {
  const p = palette();
  const item = (color, word) => {
    const shades = `linear-gradient(to right, ${tint(color, strength(0.01))}, ${tint(color, strength(1))})`;
    return h("li", {}, h("i", { class: "shades", style: `background:${shades};border-color:${color}` }), word);
  };
  if (state.before)
    return [
      item(p.accent, "faster than pinned"),
      item(p.alert, "slower, or new (dashed)"),
      h("li", {}, "darker: more seconds"),
    ];
  const bounds = [...new Set(ops.filter((op) => op.seconds > 0).map((op) => op.bound))];
  return [bounds.map((b) => item(boundColor(b), boundWords(b))), h("li", {}, "darker and taller: more of the time")];
}

function chips(phase, whole, from) {
  const rows = state.report.phases[whole].ops;
  const blocks = phase.blocks.map((b) => ({
    name: b.name,
    text: `${titleOf(b) || b.name}${b.count > 1 ? ` ×${b.count}` : ""}`,
    share: b.share,
  }));
  const own = phase.own.map((i) => rows[i]);
  const now = blocks.find((b) => b.name === state.view.block)?.name; // the next model may lack it
  const pick = (name) => setView({ block: name, op: null });
  return h(
    "div",
    { class: "blocks", role: "group", "aria-label": "Which part of the network" },
    h(
      "button",
      { type: "button", "aria-pressed": String(!now), "data-key": "whole", onclick: () => pick(null) },
      "whole network",
    ),
    blocks.map((b) =>
      h(
        "button",
        { type: "button", "aria-pressed": String(now === b.name), "data-key": b.name, onclick: () => pick(b.name) },
        b.text,
        h("small", {}, percent(b.share)),
      ),
    ),
    own.map((op) =>
      h(
        "button",
        {
          type: "button",
          class: "own",
          "data-op": op.name,
          style: `border-color:${boundColor(op.bound)}`,
          "data-key": keyOf(op, rows),
          "aria-pressed": String(state.view.op === keyOf(op, rows)),
          onclick: (event) => {
            from(keyOf(op, rows), event.detail === 0);
            setView({ op: state.view.op === keyOf(op, rows) ? null : keyOf(op, rows) });
          },
        },
        opWord(op),
        h("small", {}, percent(op.share)),
      ),
    ),
  );
}

// The options of the drawing: which operators fold, and whether kinds of layers stand side by side.
function tools(graph, beside) {
  const kinds = graph.blocks.some((b, i) => i && alike(graph.blocks[i - 1], b));
  const small = `operators under ${percent(SMALL, 0)} of the time of all operators`;
  return [
    switched("fold", "Fold small operators", `Draw ${small} together`, state.view.graph_fold !== "off", (on) =>
      setView({ graph_fold: on ? null : "off", graph_open: null }),
    ),
    kinds &&
      !graph.blocks.some((b) => b.name === state.view.block) &&
      switched("beside", "Side by side", "Kinds of layers side by side", beside, (on) =>
        setView({ graph_beside: on ? "on" : "off" }),
      ),
  ];
}

export const graphView = {
  id: "graph",
  label: "Graph",
  mount(host) {
    const bar = h("div", { class: "bar-of-view" });
    const redrawSwitch = phaseSwitch(bar);
    const parts = h("div", {});
    const legend = h("ul", { class: "legend" });
    const options = h("div", { class: "ticks" });
    bar.append(options, legend);
    const left = h("div", { class: "left" });
    const rows = () => state.report.phases[phaseOf()].ops.map((op) => ({ ...op, shape: JSON.stringify(op.shape) }));
    const picture = drawing(left, { name: "graph", title: "", rows });
    const node = (key) => host.querySelector(`[data-key="${CSS.escape(key ?? "")}"]`);
    const panel = operatorPanel();
    const view = viewport(picture.box, {
      top: () => find("tabs").offsetHeight + 80, // of the bars that stay on top
      onzoom: (zoom) => setView({ graph_zoom: zoom }, true),
    });
    picture.box.before(view.rail);
    picture.box.setAttribute("tabindex", 0);
    picture.box.setAttribute("aria-description", "+ and − zoom, 0 fits, arrows move");
    const split = h("div", { class: "split" }, left, panel.element);
    host.append(bar, parts, split);
    // What was clicked stays where it is, although the drawing around it becomes another.
    let anchor = null;
    const hold = (key) => (anchor = { key, top: node(key)?.getBoundingClientRect().top });
    const from = (key, byKeyboard) => {
      hold(key);
      panel.from(key, byKeyboard);
    };

    function draw() {
      redrawSwitch();
      const phase = phaseOf();
      const { ops, seconds: took, steps } = state.report.phases[phase];
      const graph = state.report.graph?.[phase];
      if (!graph) return show(left, h("p", { class: "note" }, "This report has no graph."));
      const chosen = ops.find((op) => keyOf(op, ops) === state.view.op) ?? null;
      const focus = host.contains(document.activeElement) && document.activeElement.dataset.key;
      const shapes = chosen && graph.shapes?.[ops.indexOf(chosen)];
      // The panel first: it takes room, which the drawing's width depends on.
      const closed = panel.draw(chosen && { op: chosen, phase, shapes, before: twin(chosen, phase) });
      const drawn = sketch(graph, ops, { phase, chosen, wide: split.clientWidth, from, hold });
      show(parts, chips(graph, phase, from));
      show(options, tools(graph, drawn.beside));
      show(legend, legendOf(ops));
      picture.draw(drawn.svg, {
        title:
          `${capital(phaseWord(phase))} · ${seconds(took)}` +
          `${steps > 1 ? ` in ${steps} steps` : ""}${againstPinned(phase)}`,
        note:
          "%: of the phase, all layers together · shapes: one GPU, one layer, the mean step · " +
          `dashed line: through the cache${graph.order ? ` · layers: ${graph.order}` : ""}`,
      });
      view.draw(drawn.svg, state.view.graph_zoom);
      const back = closed ?? (panel.element.contains(document.activeElement) ? null : focus);
      if (back) node(back)?.focus({ preventScroll: true });
      const moved = anchor && node(anchor.key)?.getBoundingClientRect().top - anchor.top;
      if (moved) scrollBy({ top: moved, behavior: "instant" });
      anchor = null;
      return undefined;
    }
    return { draw };
  },
};

// The drawing of a phase: { svg, beside: whether kinds of layers stand side by side }
function sketch(graph, ops, { phase, chosen, wide, from, hold }) {
  const key = (op) => keyOf(op, ops);
  const opened = (state.view.graph_open ?? "").split(",");
  const all = graph.blocks.reduce((sum, block) => sum + block.share, 0); // the rest is the host's, or waiting
  const share = (node) => (ops[node.row].share * node.part) / all;
  const blocks = graph.blocks.filter((b) => b.name === state.view.block);
  const shown = (blocks.length ? blocks : graph.blocks).map((block) =>
    state.view.graph_fold === "off"
      ? block
      : folded(block, share, (n) => opened.includes(key(ops[n.row])) || ops[n.row] === chosen),
  );
  const most = Math.max(wide, 320) * BESIDE;
  const beside = state.view.graph_beside ? state.view.graph_beside === "on" : null;
  const svg = network({ ...graph, blocks: shown }, ops, {
    chosen,
    key,
    shapes: graph.shapes ?? [],
    total: state.before?.phases[phase]?.seconds ?? 1,
    compared: Boolean(state.before?.phases[phase]),
    wide: beside === null ? most : beside ? Infinity : 0,
    before: (op) => twin(op, phase),
    gone: (block) => onlyPinned(block, phase),
    unfold: (first) => {
      hold(first);
      setView({ graph_open: [...opened.filter(Boolean), first].join(",") });
    },
    pick: (op, byKey) => {
      from(key(op), byKey);
      setView({ op: key(op) === state.view.op ? null : key(op) });
    },
  });
  return { svg, beside: beside ?? svg.dataset.beside === "true" };
}
