// Charts of a simulation: the engine over time, how latencies are spread, how many requests are good at which rate.
import { chart, loadCharts } from "./chart.js";
import { h } from "./dom.js";
import { digits, milliseconds, percent } from "./format.js";
import { lanesChart } from "./lanes.js";
import { palette } from "./theme.js";
import { tiersChart } from "./tiers.js";

const SPREAD = [
  ["ttft_ms", "TTFT", "ttft"],
  ["tpot_ms", "TPOT", "tpot"],
  ["e2el_ms", "End to end", "e2el"],
];

// Requests, the cache and tokens/s, as `simulate --plot` has them: tokens in eighty equal parts of the run.
function timeline(one, run) {
  const p = palette();
  const t = run.series.time_s;
  const counts = run.replay.counts;
  const active = counts.time_s.map((_, at) => counts.prefill[at] + counts.transfer[at] + counts.decode[at]);
  const line = (x, y, name, color, yaxis, more = {}) => ({
    type: "scatter",
    mode: "lines",
    name,
    x,
    y,
    yaxis,
    line: { color, width: 1.6, shape: "hv" },
    hovertemplate: `${name} %{y:.4~g}<extra></extra>`,
    ...more,
  });
  const bins = run.replay.tokens;
  const width = bins.edges_s[1] - bins.edges_s[0];
  const perSecond = (tokens) => [...tokens, tokens.at(-1)].map((n) => Math.max(n, 0) / width);
  const most = Math.max(...run.series.kv_used) * 100;
  one.draw(
    [
      line(counts.time_s, active, "running", p.blue, "y"),
      line(counts.time_s, counts.queued, "queued", p.orange, "y"),
      line(
        t,
        run.series.kv_used.map((v) => v * 100),
        "KV cache used",
        p.purple,
        "y2",
        { fill: "tozeroy", fillcolor: `${p.purple}26`, hovertemplate: "KV cache %{y:.1f}%<extra></extra>" },
      ),
      line(bins.edges_s, perSecond(bins.computed_tokens), "tokens/s computed, incl. prefill", p.vermillion, "y3"),
      line(bins.edges_s, perSecond(bins.output_tokens), "output tokens/s", p.green, "y3"),
    ],
    {
      xaxis: { title: "seconds", anchor: "y3", range: [0, run.replay.end_s] },
      yaxis: { domain: [0.6, 1], title: "requests", rangemode: "tozero" },
      yaxis2: { domain: [0.36, 0.52], title: "KV %", range: [0, Math.max(1, most * 1.15)], nticks: 3 },
      yaxis3: { domain: [0, 0.28], title: "tokens/s", rangemode: "tozero", nticks: 4 },
      hovermode: "x",
    },
    t.map((time, i) => Object.fromEntries(Object.keys(run.series).map((key) => [key, run.series[key][i]]))),
    {
      title: "The engine over time",
      note: `${digits(run.steps, 7)} steps; at most ${digits(run.max_concurrent_requests, 6)} requests at once`,
    },
  );
}

// Green where all requests keep a goal, orange where nine in ten do
const goalColor = (share, p) => (share === 1 ? p.green : share >= 0.9 ? p.orange : p.vermillion);

// A goal as it was set: goalText(50) "50 ms"
const goalText = (limit) => (limit < 1e3 ? `${digits(limit)} ms` : `${digits(limit / 1e3)} s`);

// The range of some latencies, with room; a goal that is near is within it
function rangeOf(values, limit, log) {
  let [low, high] = [values[0], values.at(-1)];
  if (limit && limit > low / 1.5 && limit < high * 1.5) [low, high] = [Math.min(low, limit), Math.max(high, limit)];
  if (log) return [Math.log10(low) - 0.05, Math.log10(high) + 0.05];
  const room = Math.max((high - low) * 0.06, high * 1e-3);
  return [low - room < 0.3 * high ? 0 : low - room, high + room];
}

// A goal: a line where it is, or an arrow at the edge behind which it is.
function goalMark(limit, share, [low, high], log, p) {
  if (!limit) return {};
  const color = goalColor(share, p);
  const x = log ? Math.log10(limit) : limit;
  const text = `goal ${goalText(limit)}`;
  const font = { color, size: 12 };
  if (x >= low && x <= high) {
    const aside = x < (low + high) / 2 ? { xanchor: "left", xshift: 5 } : { xanchor: "right", xshift: -5 };
    return {
      shapes: [
        { type: "line", x0: limit, x1: limit, yref: "paper", y0: 0, y1: 1, line: { color, dash: "5px,4px", width: 2 } },
      ],
      annotations: [{ x, ...aside, yref: "paper", y: share < 0.5 ? 0.97 : 0.03, text, font, showarrow: false }],
    };
  }
  const far = x > high;
  const place = { xref: "paper", x: far ? 1 : 0, xanchor: far ? "right" : "left", yref: "paper", y: 0.03 };
  return { annotations: [{ ...place, text: far ? `${text} →` : `← ${text}`, font, showarrow: false }] };
}

function curve(latencies, name, line) {
  return {
    type: "scatter",
    mode: "lines",
    name,
    x: latencies.value,
    y: latencies.share.map((v) => v * 100),
    line,
    hovertemplate: `${name}: %{y:.1f}% within %{x:.4~g} ms<extra></extra>`,
  };
}

function spread(charts, run, before) {
  const p = palette();
  for (const [key, name, goal] of SPREAD) {
    const one = charts[key];
    const latencies = run.distribution?.[key];
    one.element.hidden = !latencies?.value.length;
    if (one.element.hidden) continue;
    const other = before?.distribution?.[key];
    const values = [...latencies.value, ...(other?.value ?? [])].sort((a, b) => a - b);
    const limit = run.goodput?.[goal];
    const share = limit ? latencies.value.filter((v) => v <= limit).length / latencies.value.length : null;
    const log = values[0] > 0 && values.at(-1) / values[0] > 30;
    const range = rangeOf(values, limit, log);
    const median = `median ${milliseconds(run[`median_${goal}_ms`])}`;
    one.draw(
      [
        ...(other?.value.length ? [curve(other, "pinned", { color: p.muted, width: 1.6, dash: "4px,4px" })] : []),
        curve(latencies, "now", { color: p.blue, width: 2 }),
      ],
      {
        xaxis: { title: `${name} (ms)`, type: log ? "log" : "linear", range, nticks: 6 },
        yaxis: { title: "% of requests", range: [0, 103] },
        showlegend: false,
        ...goalMark(limit, share, range, log, p),
      },
      latencies.value.map((value, i) => ({ [key]: value, share: latencies.share[i] })),
      {
        title: name,
        note:
          (limit ? `goal ${goalText(limit)}: ${percent(share)} meet it` : median) + (other ? " · dashed: pinned" : ""),
      },
    );
  }
}

function byRate(one, rates) {
  const p = palette();
  const tried = rates.tried;
  const good = tried.map((t) => t.good * t.request_rate);
  const line = (y, name, color, axis, format) => ({
    type: "scatter",
    mode: "lines+markers",
    name,
    x: tried.map((t) => t.request_rate),
    y,
    yaxis: axis,
    line: { color, width: 2 },
    marker: { size: 6 },
    customdata: tried.map((t) => t.request_rate),
    hovertemplate: `%{x:.4~g}/s: ${format}<extra></extra>`,
  });
  const best = rates.request_rate;
  one.draw(
    [
      line(good, "good requests/s", p.blue, "y", "%{y:.4~g} good/s"),
      line(
        tried.map((t) => t.good * 100),
        "% good",
        p.orange,
        "y2",
        "%{y:.1f}% good",
      ),
    ],
    {
      xaxis: { title: "requests/s" },
      yaxis: { title: "good requests/s", rangemode: "tozero" },
      yaxis2: {
        overlaying: "y",
        side: "right",
        title: "% good",
        range: [0, 103],
        showgrid: false,
        tickvals: [0, 25, 50, 75, 100],
        tickmode: "array",
      },
      margin: { l: 56, r: 60, t: 12, b: 44 },
      shapes: best
        ? [{ type: "line", x0: best, x1: best, yref: "paper", y0: 0, y1: 1, line: { color: p.green, dash: "5px,4px" } }]
        : [],
      annotations: best
        ? [
            {
              x: best,
              yref: "paper",
              y: 0.04,
              text: `${digits(best)}/s holds`,
              showarrow: false,
              xanchor: "right",
              xshift: -5,
              font: { color: p.green },
            },
          ]
        : [],
    },
    tried,
    {
      title: best
        ? `Up to ${digits(best)} requests/s, ${percent(rates.share, 0)} meet the goals`
        : "Not even single requests meet the goals",
      note: `${Object.entries(rates.goodput)
        .map(([name, limit]) => `${name.toUpperCase()} ≤ ${limit} ms`)
        .join(", ")} · ${tried.length} rates simulated · click one to simulate it`,
    },
  );
}

// The replay's cursor in a chart over time: cursorIn(chart)(now)
function cursorIn({ element, box }) {
  const line = h("i", { class: "cursor", hidden: true });
  element.append(line);
  let now = null;
  const place = () => {
    const { _size: area, xaxis } = box._fullLayout ?? {};
    const share = xaxis ? (now - xaxis.range[0]) / (xaxis.range[1] - xaxis.range[0]) : -1;
    line.hidden = now === null || box.hidden || !(share >= 0 && share <= 1);
    if (line.hidden) return;
    line.style.left = `${box.offsetLeft + area.l + share * area.w}px`;
    line.style.top = `${box.offsetTop + area.t}px`;
    line.style.height = `${area.h}px`;
  };
  new ResizeObserver(() => requestAnimationFrame(place)).observe(box);
  return (at) => {
    now = at;
    if (box._fullLayout) place();
    else
      loadCharts().then(
        () => requestAnimationFrame(place),
        () => null,
      ); // the chart says what is wrong
  };
}

// simulationCharts(host, { command, rateCommand, replay, onrate, onseek }) -> { draw(run, rates, before), cursor(now) }
export function simulationCharts(host, { command, rateCommand, replay, onrate, onseek }) {
  const rates = chart(host, {
    name: "goodput",
    title: "",
    height: 340,
    command: rateCommand,
    onpick: (point) => onrate(String(Number(point.customdata.toPrecision(4)))),
  });
  host.append(replay);
  const time = chart(host, { name: "timeline", title: "", height: 460, command, onpick: (point) => onseek(point.x) });
  const lanes = lanesChart(host, command);
  const tiers = tiersChart(host, command);
  const place = h("div", { class: "two three" });
  host.append(place);
  const spreads = Object.fromEntries(
    SPREAD.map(([key, name]) => [key, chart(place, { name: `cdf-${key}`, title: name, height: 270, command })]),
  );
  return {
    cursor: cursorIn(time),
    draw(run, capacity, before) {
      const served = run && run.completed > 0;
      rates.element.hidden = !capacity?.tried?.length;
      time.element.hidden = place.hidden = !served;
      if (capacity?.tried?.length) byRate(rates, capacity);
      lanes.draw(served ? run : null);
      tiers.draw(served ? run : null);
      if (served) {
        timeline(time, run);
        spread(spreads, run, before);
      }
    },
  };
}
