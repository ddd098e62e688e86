// Throughput against interactivity: the front of a search, the region that keeps the limits, what was simulated.
import { chart, halfDecades } from "./chart.js";
import { beaten, csvRow, missedLimits, open } from "./deployment.js";
import { digits, milliseconds, money } from "./format.js";
import { palette, tint } from "./theme.js";

const PER_USER = "output_throughput_per_user";
const PER_GPU = "output_throughput_per_gpu";
const LANE = 0.09; // of the width: where deployments stand that lost, whose speed was never measured within the limits

const front = (answer) => [...answer.front].sort((a, b) => a[PER_USER] - b[PER_USER]);

function hover(metrics, name, how) {
  const cost = metrics.cost_per_million_output_tokens;
  return (
    `<b>${name}</b><br>${digits(metrics[PER_GPU])} tokens/s per GPU, ${digits(metrics[PER_USER])} per user<br>` +
    `TTFT ${milliseconds(metrics.ttft_ms)}${cost ? `, ${money(cost)} per M tokens` : ""}<br>${how}`
  );
}

const dots = (name, marker, rows, metricsOf, how) => ({
  type: "scatter",
  mode: "markers",
  name,
  marker,
  x: rows.map((row) => metricsOf(row)[PER_USER]),
  y: rows.map((row) => metricsOf(row)[PER_GPU]),
  customdata: rows,
  hoverinfo: "text",
  hovertext: rows.map((row) => hover(metricsOf(row), row.plan ?? row.label, how)),
});

const line = (name, rows, style) => ({
  type: "scatter",
  mode: "lines",
  name,
  hoverinfo: "skip",
  x: rows.map((row) => row[PER_USER]),
  y: rows.map((row) => row[PER_GPU]),
  line: style,
});

// Those that lost: the rate is only known to be lower, so they stand beside the plane, at what they stay below.
function lost(answer, p) {
  const rows = answer.plans.filter((one) => beaten(one) && one.simulated);
  return {
    type: "scatter",
    mode: "markers",
    name: "beaten: less than this",
    xaxis: "x2",
    marker: { size: 10, symbol: "triangle-down-open", color: p.muted, line: { width: 1.5 } },
    x: rows.map((_, i) => i),
    y: rows.map((one) => one.simulated[PER_GPU]),
    customdata: rows,
    hoverinfo: "text",
    hovertext: rows.map((one) => {
      const why = missedLimits(one, answer).join(", ") || one.reason;
      const rate = digits(one.simulated.request_rate, 4);
      const most = `fewer than ${digits(one.simulated[PER_GPU])} tokens/s per GPU`;
      return `<b>${one.label}</b><br>beaten: ${most}<br>at ${rate} requests/s ${why}`;
    }),
  };
}

function traces(answer, p) {
  const points = front(answer);
  const held = answer.plans.filter((one) => one.simulated && !beaten(one));
  const plain = (row) => row;
  const simulated = (one) => one.simulated;
  const won = (one) => one.verdict === "wins";
  return [
    line("Pareto front, estimated", points, { color: p.muted, width: 1.2 }),
    dots(
      "misses a limit",
      { size: 7, symbol: "circle-open", color: p.muted, line: { width: 1.2 } },
      points.filter((point) => !point.keeps_limits),
      plain,
      "estimated; misses a limit",
    ),
    dots(
      "meets the limits",
      { size: 8, color: p.blue },
      points.filter((point) => point.keeps_limits),
      plain,
      "estimated; meets the limits",
    ),
    dots(
      "simulated, meets the limits",
      { size: 10, symbol: "diamond", color: p.orange, line: { color: p.paper, width: 1 } },
      held.filter((one) => !won(one)),
      simulated,
      "simulated; meets the limits",
    ),
    lost(answer, p),
    dots(
      "the best, simulated",
      { size: 19, symbol: "star", color: p.vermillion, line: { color: p.paper, width: 1 } },
      held.filter(won),
      simulated,
      "simulated; the best",
    ),
  ];
}

function pinnedTraces(answer, p) {
  const best = answer.plans.filter((one) => one.verdict === "wins" && one.simulated);
  const points = front(answer);
  return [
    line("pinned: front", points, { color: p.purple, width: 1.2, dash: "dash" }),
    {
      ...dots(
        "pinned: meets the limits",
        { size: 6, color: p.purple, opacity: 0.75 },
        points.filter((point) => point.keeps_limits),
        (row) => row,
        "pinned; estimated",
      ),
      showlegend: false,
    },
    dots(
      "pinned: the best",
      { size: 17, symbol: "star-open", color: p.purple, line: { width: 2 } },
      best,
      (one) => one.simulated,
      "pinned; simulated",
    ),
  ];
}

// The region that keeps the limit of TPOT, and what it is called.
function region({ tpot }, right, p) {
  const least = 1e3 / tpot;
  if (!tpot || least >= right) return {};
  const rect = { type: "rect", x0: least, x1: right, yref: "paper", y0: 0, y1: 1, line: { width: 0 }, layer: "below" };
  const name = {
    x: Math.log10(least),
    yref: "paper",
    y: 1,
    text: ` TPOT ≤ ${tpot} ms`,
    showarrow: false,
    xanchor: "left",
    yanchor: "top",
    font: { color: p.green, size: 11.5 },
  };
  return { shapes: [{ ...rect, fillcolor: tint(p.green, 0.12) }], annotations: [name] };
}

// paretoChart(host, command) -> { element, draw(answer, pinned) }
export function paretoChart(host, command) {
  const plot = chart(host, {
    name: "pareto",
    title: "Throughput against interactivity",
    height: 460,
    command,
    onpick: (point) => point.customdata && open(point.customdata),
  });
  function draw(answer, pinned) {
    const p = palette();
    const all = [...(pinned ? pinnedTraces(pinned, p) : []), ...traces(answer, p)].filter((trace) => trace.x.length);
    const xs = all.filter((trace) => !trace.xaxis).flatMap((trace) => trace.x);
    const least = answer.goodput.tpot ? 1e3 / answer.goodput.tpot : Infinity;
    const [left, right] = [Math.min(...xs, least) * 0.88, Math.max(...xs) * 1.15];
    const lane = all.find((trace) => trace.xaxis);
    const annotation = region(answer.goodput, right, p);
    plot.draw(
      all,
      {
        xaxis: {
          title: "output tokens/s per user (1 / TPOT)",
          type: "log",
          range: [Math.log10(left), Math.log10(right)],
          domain: [lane ? LANE : 0, 1],
          ...halfDecades(left, right, (v) => digits(v)),
        },
        xaxis2: {
          domain: [0, LANE * 0.8],
          range: [-0.7, (lane?.x.length ?? 1) - 0.3],
          tickvals: lane ? [(lane.x.length - 1) / 2] : [],
          ticktext: ["beaten"],
          ticks: "",
          showgrid: false,
          zeroline: false,
          visible: Boolean(lane),
        },
        yaxis: { title: "output tokens/s per GPU", rangemode: "tozero", anchor: lane ? "x2" : "x" },
        hovermode: "closest",
        ...annotation,
      },
      [...answer.front.map(({ pools, ...point }) => ({ outcome: "estimated", ...point })), ...answer.plans.map(csvRow)],
      { note: "click a point to open that plan; estimates are means, simulations include queueing" },
    );
  }
  return { element: plot.element, draw };
}
