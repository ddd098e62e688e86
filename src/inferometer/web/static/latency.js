// Tab: a step as a waterfall, operator after operator; and what TTFT and TPOT are made of.
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { capital, change, digits, milliseconds, percent, seconds } from "./format.js";
import { twin } from "./graph.js";
import { blockWord, draws, opWord, phaseWord } from "./kind.js";
import { keyOf, phaseOf, phaseSwitch } from "./phases.js";
import { setView, state } from "./state.js";
import { boundColor, boundWords, palette } from "./theme.js";

// One unit for a whole chart: [1e3, "ms"]
function scaled(most) {
  return most >= 1 ? [1, "s"] : most >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
}

const pinnedText = (op, pinned) =>
  pinned ? `<br>pinned ${seconds(pinned.seconds)}, now ${change(op.seconds, pinned.seconds)}` : "";

const SMALL = 0.005; // of the phase: operators below it are one row, until it is opened

const isOpen = () => state.view.lat_all === "on";
const opened = (open) => setView({ lat_all: open ? "on" : null });

// The rows of a waterfall, one after the other: operators in their order, then those that are folded as one.
function rowsOf(ops) {
  const timed = ops.filter((op) => op.seconds > 0);
  const small = timed.filter((op) => op.share < SMALL);
  const folded = isOpen() || small.length < 2 ? [] : small;
  const often = (op) => timed.filter((other) => other.name === op.name).length > 1;
  let from = 0;
  const row = (op, label, extra) => {
    const start = from;
    from += op.seconds;
    return { op, label, start, ...extra };
  };
  const rows = timed
    .filter((op) => !folded.includes(op))
    .map((op) => row(op, `${opWord(op)}${often(op) ? ` · ${blockWord(op.block)}` : ""}`));
  const sum = (key) => folded.reduce((total, op) => total + op[key], 0);
  if (folded.length) {
    const rest = { bound: "other", count: sum("count"), roofline_seconds: sum("roofline_seconds") };
    const op = { ...rest, name: "others", block: "", seconds: sum("seconds"), share: sum("share") };
    rows.push(row(op, `${folded.length} others, each below 0.5%`, { folded }));
  }
  return { rows, small };
}

const boundName = (bound) => (bound === "other" ? "several" : boundWords(bound));

// The same in the pinned plan: an operator, or all of those that are folded.
function before(op, folded, phase) {
  if (!folded) return twin(op, phase);
  const twins = folded.map((one) => twin(one, phase)).filter(Boolean);
  return twins.length ? { seconds: twins.reduce((sum, one) => sum + one.seconds, 0) } : null;
}

function waterfall(one, phase) {
  const { ops, seconds: took, steps } = state.report.phases[phase];
  const { rows } = rowsOf(ops);
  const [scale, unit] = scaled(took);
  const p = palette();
  const labels = rows.map((r, i) => `${i}`);
  const bounds = [...new Set(rows.map((r) => r.op.bound))];
  const traces = bounds.map((bound) => {
    const bars = rows.map((r, i) => [r, i]).filter(([r]) => r.op.bound === bound);
    return {
      type: "bar",
      orientation: "h",
      name: boundName(bound),
      y: bars.map(([, i]) => labels[i]),
      base: bars.map(([r]) => r.start * scale),
      x: bars.map(([r]) => r.op.seconds * scale),
      marker: { color: boundColor(bound) },
      customdata: bars.map(([r]) => (r.folded ? "folded" : keyOf(r.op, ops))),
      hoverinfo: "text",
      cliponaxis: false,
      hovertext: bars.map(
        ([{ op, folded }]) =>
          (folded
            ? `<b>${folded.length} others</b>, click to open<br>`
            : `<b>${opWord(op)}</b> · ${blockWord(op.block)}<br>`) +
          `${seconds(op.seconds)} (${percent(op.share)}), ${digits(op.count)} calls<br>` +
          `at its roofline ${seconds(op.roofline_seconds)}${pinnedText(op, before(op, folded, phase))}`,
      ),
      text: bars.map(
        ([r]) =>
          percent(r.op.share) +
          (before(r.op, r.folded, phase) ? ` ${change(r.op.seconds, before(r.op, r.folded, phase).seconds)}` : ""),
      ),
      textposition: "outside",
      textfont: { size: 10.5, color: p.muted },
    };
  });
  const most = Math.max(took, rows.at(-1)?.start + rows.at(-1)?.op.seconds || 0) * scale;
  one.draw(
    traces,
    {
      barmode: "overlay",
      xaxis: {
        title: `${unit} since the start of ${phaseWord(phase)}`,
        range: [0, most * (one.box.clientWidth < 560 ? 1.45 : 1.1)],
      },
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
    timeline(ops).map(({ op, start }) => ({
      phase,
      operator: op.name,
      block: op.block,
      start_seconds: start,
      seconds: op.seconds,
      share: op.share,
      bound: op.bound,
      roofline_seconds: op.roofline_seconds,
      calls: op.count,
    })),
    {
      title: `${capital(phaseWord(phase))}: ${seconds(took)}${steps > 1 ? ` in ${digits(steps)} steps` : ""}`,
      note: summary(ops),
      height: Math.max(260, 66 + rows.length * 25),
    },
  );
}

// Every operator with its start: what the chart's table and file have, folded or not.
function timeline(ops) {
  let from = 0;
  return ops
    .filter((op) => op.seconds > 0)
    .map((op) => {
      const start = from;
      from += op.seconds;
      return { op, start };
    });
}

// What the waterfall says, in words and figures.
function summary(ops) {
  const [first, second] = [...ops].sort((a, b) => b.seconds - a.seconds);
  const part = (op) => `${opWord(op)} ${percent(op.share)} (${seconds(op.seconds)})`;
  return (
    `largest: ${[first, second].filter(Boolean).map(part).join(", ")} · ` +
    "operators in order, all layers of a kind together; click one to see its formulas"
  );
}

const NAMES = { prefill: ["TTFT", "ttft_ms"], decode: ["TPOT", "tpot_ms"] };

const kindWords = (op) =>
  op.name === "host_overhead"
    ? "host"
    : ({ moe: "experts", kv_write: "KV cache write" }[op.kind] ?? op.kind.replaceAll("_", " "));

// TTFT and TPOT of this plan and of the pinned one, each beside its pair; the rest of TTFT is the engine's front.
function compositions() {
  const plans = [["now", state.report], ...(state.before ? [["pinned", state.before]] : [])];
  return Object.keys(state.report.phases).map((phase) => {
    const [word, key] = draws() ? ["a denoising step", "ttft_ms"] : (NAMES[phase] ?? [phase]);
    const bars = plans
      .filter(([, report]) => report.phases[phase])
      .map(([plan, report]) => {
        const { ops, seconds: took } = report.phases[phase];
        const total = Math.max((key && report.metrics[key] / 1e3) || 0, took);
        const kinds = new Map();
        const add = (kind, value) => kinds.set(kind, (kinds.get(kind) ?? 0) + value);
        for (const op of ops) add(kindWords(op), op.seconds);
        if (total - took > total * 1e-4) add("request front-end and the rest", total - took);
        return { label: plans.length > 1 ? `${word} ${plan}` : word, total, kinds };
      });
    return { word, bars };
  });
}

// Kinds of operators by their largest share anywhere; those that are nowhere 1% are together, as are more than eight.
function kindsOf(figures) {
  const bars = figures.flatMap((figure) => figure.bars);
  const most = (kind) => Math.max(...bars.map((bar) => (bar.kinds.get(kind) ?? 0) / bar.total));
  const names = [...new Set(bars.flatMap((bar) => [...bar.kinds.keys()]))].sort((a, b) => most(b) - most(a));
  const large = names.filter((kind) => most(kind) >= 0.01).slice(0, 8);
  const small = names.filter((kind) => !large.includes(kind));
  const value = (kinds) => (bar) => kinds.reduce((sum, kind) => sum + (bar.kinds.get(kind) ?? 0), 0);
  const groups = large.map((kind) => [kind, value([kind])]);
  if (small.length) groups.push([small.length > 1 ? `${small.length} others` : small[0], value(small)]);
  return groups;
}

// What a phase's time is made of, by kind of operator: seconds as lengths, shares as figures. Each pair has its axis.
function composition(one) {
  const p = palette();
  const figures = compositions();
  const kinds = kindsOf(figures);
  const colors = [p.blue, p.vermillion, p.orange, p.green, p.purple, p.sky, p.grey, p.ink];
  const number = (i) => (i ? i + 1 : "");
  const scales = figures.map(({ bars }) => scaled(Math.max(...bars.map((bar) => bar.total))));
  const reach = figures.map(({ bars }, i) => Math.max(...bars.map((bar) => bar.total)) * scales[i][0]);
  const traces = figures.flatMap(({ bars }, i) =>
    kinds.map(([kind, value], k) => ({
      type: "bar",
      orientation: "h",
      name: kind,
      legendgroup: kind,
      showlegend: i === 0,
      y: bars.map((bar) => bar.label),
      x: bars.map((bar) => value(bar) * scales[i][0]),
      xaxis: `x${number(i)}`,
      yaxis: `y${number(i)}`,
      marker: { color: colors[k] ?? p.faint },
      hoverinfo: "text",
      hovertext: bars.map((bar) => `${bar.label}: ${kind} ${seconds(value(bar))} (${percent(value(bar) / bar.total)})`),
      text: bars.map((bar) => (value(bar) * scales[i][0] > 0.045 * reach[i] ? percent(value(bar) / bar.total, 0) : "")),
      textposition: "inside",
      insidetextanchor: "middle",
      textangle: 0,
    })),
  );
  const rows = figures.map(({ bars }) => bars.length);
  const narrow = one.box.clientWidth < 560;
  // pixels: of a bar, between two axes, below the last
  const [each, between, foot] = [44, 52, narrow ? 70 + 19 * kinds.length : 100];
  const inner = rows.reduce((sum, n) => sum + n * each, 0) + between * (rows.length - 1);
  const axes = {};
  let top = inner;
  figures.forEach(({ word }, i) => {
    const domain = [(top - rows[i] * each) / inner, top / inner];
    top -= rows[i] * each + between;
    axes[`yaxis${number(i)}`] = { domain, anchor: `x${number(i)}`, autorange: "reversed", ticks: "" };
    axes[`xaxis${number(i)}`] = {
      anchor: `y${number(i)}`,
      range: [0, reach[i] * (narrow ? 1.6 : 1.16)],
      title: { text: `${word} (${scales[i][1]})`, standoff: 2 },
    };
  });
  const ends = figures.flatMap(({ bars }, i) =>
    bars.map((bar, k) => ({
      x: bar.total * scales[i][0],
      y: bar.label,
      xref: `x${number(i)}`,
      yref: `y${number(i)}`,
      xanchor: "left",
      xshift: 4,
      text: seconds(bar.total) + (k === 0 && bars[1] ? ` (${change(bar.total, bars[1].total)})` : ""),
      showarrow: false,
      font: { size: 11.5, color: p.ink },
    })),
  );
  const every = figures.flatMap((figure) => figure.bars);
  const largest = (bar) =>
    kinds.reduce((most, [kind, value]) => (value(bar) > most[1] ? [kind, value(bar)] : most), ["", 0]);
  one.draw(
    traces,
    {
      barmode: "stack",
      bargap: 0.3,
      uniformtext: { minsize: 9, mode: "hide" },
      ...axes,
      annotations: ends,
      legend: { orientation: "h", y: -62 / inner, yanchor: "top", x: 0, traceorder: "normal" },
      margin: { l: 60, r: 16, t: 8, b: foot },
    },
    every.flatMap((bar) =>
      kinds.map(([kind, value]) => ({
        figure: bar.label,
        kind,
        seconds: value(bar),
        share: value(bar) / bar.total,
      })),
    ),
    {
      title: `What ${figures.map((figure) => figure.word).join(" and ")} ${figures.length > 1 ? "are" : "is"} made of`,
      note: every
        .map((bar) => {
          const [kind, took] = largest(bar);
          return `${bar.label} ${milliseconds(bar.total * 1e3)}, ${percent(took / bar.total, 0)} of it ${kind}`;
        })
        .join(" · "),
      height: inner + foot + 8,
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
    const fold = h("button", { type: "button", class: "fold", onclick: () => opened(!isOpen()) });
    bar.append(fold);
    host.append(bar);
    const first = chart(host, {
      name: "waterfall",
      title: "",
      height: 420,
      onpick: ({ customdata }) =>
        customdata === "folded" ? opened(true) : setView({ tab: null, phase: phaseOf(), op: customdata }),
    });
    return {
      draw() {
        redrawSwitch();
        const { small } = rowsOf(state.report.phases[phaseOf()].ops);
        fold.hidden = small.length < 2;
        fold.textContent = isOpen()
          ? `Fold ${small.length} operators below 0.5%`
          : `Show ${small.length} operators below 0.5%`;
        composition(second);
        waterfall(first, phaseOf());
      },
    };
  },
};
