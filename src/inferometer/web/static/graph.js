// Tab: the network and its operators.
import { drawing } from "./chart.js";
import { h, show } from "./dom.js";
import { capital, percent, seconds } from "./format.js";
import { network } from "./network.js";
import { showOperator } from "./operator.js";
import { keyOf, phaseOf, phaseSwitch } from "./phases.js";
import { setView, state } from "./state.js";
import { boundColor, boundWords } from "./theme.js";

// The same operator of the pinned report: by block and name, else by name alone.
export function twin(op, phase) {
  const ops = state.before?.phases[phase]?.ops;
  if (!ops) return null;
  const key = keyOf(op, state.report.phases[phase].ops);
  return ops.find((o) => keyOf(o, ops) === key) ?? ops.find((o) => o.name === op.name && o.kind === op.kind) ?? null;
}

function strip(phase, whole) {
  const rows = state.report.phases[whole].ops;
  const blocks = phase.blocks.map((b) => ({
    name: b.name,
    text: `${b.letter ? `${b.letter} · ` : ""}${b.name}${b.count > 1 ? ` ×${b.count}` : ""}`,
    share: b.share,
  }));
  const own = phase.own.map((i) => rows[i]);
  const now = state.view.block;
  const pick = (name) => setView({ block: name, op: null });
  return h(
    "div",
    { class: "blocks", role: "group", "aria-label": "Which part of the network" },
    h("button", { type: "button", "aria-pressed": String(!now), onclick: () => pick(null) }, "whole network"),
    blocks.map((b) =>
      h(
        "button",
        { type: "button", "aria-pressed": String(now === b.name), onclick: () => pick(b.name) },
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
          "aria-pressed": String(state.view.op === keyOf(op, rows)),
          onclick: () => setView({ op: keyOf(op, rows) }),
        },
        op.name,
        h("small", {}, percent(op.share)),
      ),
    ),
  );
}

export const graphView = {
  id: "graph",
  label: "Graph",
  mount(host) {
    const bar = h("div", { class: "bar-of-view" });
    const redrawSwitch = phaseSwitch(bar);
    const parts = h("div", {});
    const legend = h("ul", { class: "legend" });
    bar.append(legend);
    const left = h("div", { class: "left" });
    const side = h("aside", { class: "operator", "aria-label": "Operator", hidden: true });
    const rows = () => state.report.phases[phaseOf()].ops.map((op) => ({ ...op, shape: JSON.stringify(op.shape) }));
    const picture = drawing(left, { name: "graph", title: "", rows });
    host.append(bar, parts, h("div", { class: "split" }, left, side));
    let shown = "";
    const close = () => {
      const was = state.view.op;
      setView({ op: null });
      left.querySelector(`[data-key="${CSS.escape(was ?? "")}"]`)?.focus();
    };
    return {
      draw() {
        redrawSwitch();
        const phase = phaseOf();
        const { ops, seconds: took, steps } = state.report.phases[phase];
        const graph = state.report.graph?.[phase];
        if (!graph) return show(left, h("p", { class: "note" }, "This report has no graph."));
        const block = graph.blocks.find((b) => b.name === state.view.block);
        const chosen = ops.find((op) => keyOf(op, ops) === state.view.op) ?? null;
        const focus = document.activeElement?.closest?.(".op")?.dataset.key;
        show(parts, strip(graph, phase));
        show(
          legend,
          [...new Set(ops.filter((op) => op.seconds > 0).map((op) => op.bound))].map((b) =>
            h("li", {}, h("i", { style: `background:${boundColor(b)}` }), boundWords(b)),
          ),
        );
        const svg = network(block ? { ...graph, blocks: [block] } : graph, ops, {
          chosen,
          key: (op) => keyOf(op, ops),
          wide: Math.max(left.clientWidth, 320),
          before: (op) => twin(op, phase),
          pick: (op) => setView({ op: keyOf(op, ops) === state.view.op ? null : keyOf(op, ops) }),
        });
        // A little too wide is drawn smaller; much too wide keeps its size and is scrolled.
        if (left.clientWidth > 0.66 * Number(svg.getAttribute("width"))) svg.classList.add("fits");
        picture.draw(svg, {
          title: `${capital(phase)} · ${seconds(took)}${steps > 1 ? ` in ${steps} steps` : ""}`,
          note:
            "height: time · %: of the phase, all layers together · shapes: one GPU, one layer · " +
            `dashed: through the cache${graph.order ? ` · layers: ${graph.order}` : ""}`,
        });
        if (focus) left.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
        side.hidden = !chosen;
        if (chosen) {
          const now = JSON.stringify([chosen, phase, state.before === null, document.documentElement.dataset.theme]);
          if (now !== shown) showOperator(side, chosen, phase, twin(chosen, phase), close);
          shown = now;
        } else shown = "";
      },
    };
  },
};
