// Tab: a step as a waterfall, operator after operator; and what TTFT and TPOT are made of.
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { capital, change, digits, milliseconds, percent, seconds } from "./format.js";
import { twin } from "./graph.js";
import { keyOf, phaseOf, phaseSwitch } from "./phases.js";
import { setView, state } from "./state.js";
import { boundColor, boundWords, palette } from "./theme.js";

// One unit for a whole chart: [1e3, "ms"]
function scaled(most) {
  return most >= 1 ? [1, "s"] : most >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
}

const pinnedText = (op, pinned) =>
  pinned ? `<br>pinned ${seconds(pinned.seconds)}, now ${change(op.seconds, pinned.seconds)}` : "";

function waterfall(one, phase) {
  const { ops, seconds: took, steps } = state.report.phases[phase];
  const shown = ops.filter((op) => op.seconds > 0);
  const [scale, unit] = scaled(took);
  let from = 0;
  const rows = shown.map((op) => {
    const row = {
      op,
      start: from,
      label: `${op.name}${shown.filter((o) => o.name === op.name).length > 1 ? ` · ${op.block}` : ""}`,
    };
    from += op.seconds;
    return row;
  });
  const p = palette();
  const labels = rows.map((r, i) => `${i}`);
  const bounds = [...new Set(shown.map((op) => op.bound))];
  const traces = bounds.map((bound) => {
    const bars = rows.map((r, i) => [r, i]).filter(([r]) => r.op.bound === bound);
    return {
      type: "bar",
      orientation: "h",
      name: boundWords(bound),
      y: bars.map(([, i]) => labels[i]),
      base: bars.map(([r]) => r.start * scale),
      x: bars.map(([r]) => r.op.seconds * scale),
      marker: { color: boundColor(bound) },
      customdata: bars.map(([r]) => keyOf(r.op, ops)),
      hoverinfo: "text",
      cliponaxis: false,
      hovertext: bars.map(
        ([{ op }]) =>
          `<b>${op.name}</b> · ${op.block}<br>` +
          `${seconds(op.seconds)} (${percent(op.share)}), ${digits(op.count)} calls<br>` +
          `at its roofline ${seconds(op.roofline_seconds)}${pinnedText(op, twin(op, phase))}`,
      ),
      text: bars.map(
        ([r]) =>
          `${percent(r.op.share)}${twin(r.op, phase) ? ` ${change(r.op.seconds, twin(r.op, phase).seconds)}` : ""}`,
      ),
      textposition: "outside",
      textfont: { size: 10.5, color: p.muted },
    };
  });
  const most = Math.max(took, from) * scale;
  one.draw(
    traces,
    {
      barmode: "overlay",
      xaxis: { title: `${unit} since the ${phase} began`, range: [0, most * 1.1] },
      hovermode: "closest",
      bargap: 0.22,
      yaxis: {
        autorange: "reversed",
        type: "category",
        categoryorder: "array",
        categoryarray: labels,
        tickvals: labels,
        ticktext: rows.map((r) => r.label),
        ticks: "",
      },
      margin: { l: 60, r: 20, t: 8, b: 46 },
    },
    rows.map((r) => ({
      phase,
      operator: r.op.name,
      block: r.op.block,
      start_seconds: r.start,
      seconds: r.op.seconds,
      share: r.op.share,
      bound: r.op.bound,
      roofline_seconds: r.op.roofline_seconds,
      calls: r.op.count,
    })),
    {
      title: `${capital(phase)}: ${seconds(took)}${steps > 1 ? ` in ${digits(steps)} steps` : ""}`,
      note: "operators in their order, all layers of a kind together; click one to see its formulas",
      height: Math.max(260, 66 + rows.length * 25),
    },
  );
}

const NAMES = { prefill: ["TTFT", "ttft_ms"], decode: ["TPOT", "tpot_ms"] };

// What a phase's time is made of, by kind of operator; the rest of TTFT is the engine's front.
function composition(one) {
  const p = palette();
  const plans = [["now", state.report], ...(state.before ? [["pinned", state.before]] : [])];
  const bars = plans
    .flatMap(([word, report]) =>
      Object.keys(report.phases).map((phase) => ({
        word,
        report,
        phase,
        label: `${NAMES[phase]?.[0] ?? phase}${plans.length > 1 ? ` ${word}` : ""}`,
      })),
    )
    .reverse();
  const totals = bars.map((b) => {
    const [, key] = NAMES[b.phase] ?? [];
    return Math.max((key && b.report.metrics[key] / 1e3) || 0, b.report.phases[b.phase].seconds);
  });
  const groups = new Map();
  bars.forEach((bar, i) => {
    for (const op of bar.report.phases[bar.phase].ops) {
      const kind = op.name === "host_overhead" ? "host" : op.kind.replaceAll("_", " ");
      if (!groups.has(kind))
        groups.set(
          kind,
          bars.map(() => 0),
        );
      groups.get(kind)[i] += op.seconds;
    }
  });
  const rest = bars.map((b, i) => Math.max(0, totals[i] - b.report.phases[b.phase].seconds));
  if (rest.some((r, i) => r > totals[i] * 1e-4)) groups.set("request front-end and the rest", rest);
  const sorted = [...groups]
    .map(([kind, values]) => [kind, values, Math.max(...values.map((v, i) => v / totals[i]))])
    .sort((a, b) => b[2] - a[2]);
  const large = sorted.filter(([, , share]) => share >= 0.01);
  const small = sorted.filter(([, , share]) => share < 0.01);
  if (small.length)
    large.push([`${small.length} others`, bars.map((_, i) => small.reduce((sum, [, v]) => sum + v[i], 0)), 0]);
  const colors = [p.blue, p.vermillion, p.orange, p.green, p.purple, p.sky, p.grey, p.ink, p.faint];
  const traces = large.map(([kind, values], k) => ({
    type: "bar",
    orientation: "h",
    name: kind,
    y: bars.map((b) => b.label),
    x: values.map((v, i) => (v / totals[i]) * 100),
    marker: { color: colors[k % colors.length] },
    hoverinfo: "text",
    hovertext: values.map((v, i) => `${bars[i].label}: ${kind} ${seconds(v)} (${percent(v / totals[i])})`),
    text: values.map((v, i) => (v / totals[i] > 0.07 ? percent(v / totals[i], 0) : "")),
    textposition: "inside",
    insidetextanchor: "middle",
  }));
  one.draw(
    traces,
    {
      barmode: "stack",
      bargap: 0.35,
      xaxis: { title: "% of the time", range: [0, 100] },
      yaxis: {},
      legend: { orientation: "h", y: -0.3, yanchor: "top", x: 0, traceorder: "normal" },
      margin: { l: 60, r: 16, t: 8, b: 110 },
    },
    large.flatMap(([kind, values]) =>
      values.map((v, i) => ({ figure: bars[i].label, kind, seconds: v, share: v / totals[i] })),
    ),
    {
      note: [...bars]
        .reverse()
        .map((b) => `${b.label} ${milliseconds(totals[bars.indexOf(b)] * 1e3)}`)
        .join(" · "),
      height: 190 + bars.length * 44,
    },
  );
}

export const latencyView = {
  id: "latency",
  label: "Latency",
  mount(host) {
    const second = chart(host, { name: "composition", title: "What TTFT and TPOT are made of", height: 250 });
    const bar = h("div", { class: "bar-of-view" });
    const redrawSwitch = phaseSwitch(bar);
    host.append(bar);
    const first = chart(host, {
      name: "waterfall",
      title: "",
      height: 420,
      onpick: (point) => setView({ tab: null, op: point.customdata }),
    });
    return {
      draw() {
        redrawSwitch();
        composition(second);
        waterfall(first, phaseOf());
      },
    };
  },
};
