// Charts of a simulation: the engine over time, how latencies are spread, how many requests are good at which rate.
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { digits, percent } from "./format.js";
import { setView } from "./state.js";
import { palette } from "./theme.js";

const SPREAD = [
  ["ttft_ms", "TTFT", "ttft"],
  ["tpot_ms", "TPOT", "tpot"],
  ["e2el_ms", "end to end", "e2el"],
];

function timeline(one, run) {
  const p = palette();
  const t = run.series.time_s;
  const line = (key, name, color, axis, extra = {}) => ({
    type: "scatter",
    mode: "lines",
    name,
    x: t,
    y: run.series[key],
    yaxis: axis,
    line: { color, width: 1.6, shape: "hv", ...extra },
    hovertemplate: `${name} %{y:.4~g}<extra></extra>`,
  });
  const traces = [
    line("running", "running", p.blue, "y"),
    line("waiting", "waiting", p.vermillion, "y"),
    {
      ...line("kv_used", "KV cache used", p.orange, "y2"),
      y: run.series.kv_used.map((v) => v * 100),
      fill: "tozeroy",
      fillcolor: `${p.orange}26`, // 15% opaque,
      hovertemplate: "KV cache %{y:.1f}%<extra></extra>",
    },
    line("tokens_per_s", "tokens/s", p.green, "y3"),
  ];
  one.draw(
    traces,
    {
      xaxis: { title: "seconds", anchor: "y3" },
      yaxis: { domain: [0.56, 1], title: "requests", rangemode: "tozero" },
      yaxis2: { domain: [0.3, 0.48], title: "KV %", range: [0, Math.max(5, Math.max(...run.series.kv_used) * 115)] },
      yaxis3: { domain: [0, 0.22], title: "tokens/s", rangemode: "tozero", nticks: 3 },
      hovermode: "x",
    },
    t.map((time, i) => Object.fromEntries(Object.keys(run.series).map((key) => [key, run.series[key][i]]))),
    {
      title: "The engine over time",
      note: `${digits(run.steps, 7)} steps; at most ${digits(run.max_concurrent_requests, 6)} requests at once`,
    },
  );
}

function spread(charts, run, before) {
  const p = palette();
  for (const [key, name, goal] of SPREAD) {
    const one = charts[key];
    const latencies = run.distribution?.[key];
    one.element.hidden = !latencies?.value.length;
    if (one.element.hidden) continue;
    const limit = run.goodput?.[goal];
    const share = limit ? latencies.value.filter((v) => v <= limit).length / latencies.value.length : null;
    const wide = latencies.value.at(-1) / Math.max(latencies.value[0], 1e-9) > 30;
    one.draw(
      [
        {
          type: "scatter",
          mode: "lines",
          x: latencies.value,
          y: latencies.share.map((v) => v * 100),
          line: { color: p.blue, width: 2 },
          hovertemplate: `%{y:.1f}% within %{x:.4~g} ms<extra></extra>`,
        },
        ...(before?.distribution?.[key]?.value.length
          ? [
              {
                type: "scatter",
                mode: "lines",
                x: before.distribution[key].value,
                y: before.distribution[key].share.map((v) => v * 100),
                line: { color: p.muted, width: 1.6, dash: "4px,4px" },
                hovertemplate: `pinned: %{y:.1f}% within %{x:.4~g} ms<extra></extra>`,
              },
            ]
          : []),
      ],
      {
        xaxis: { title: `${name} (ms)`, type: wide ? "log" : "linear", ...(wide ? {} : { rangemode: "tozero" }) },
        yaxis: { title: "% of requests", range: [0, 101] },
        showlegend: false,
        shapes: limit
          ? [
              {
                type: "line",
                x0: limit,
                x1: limit,
                yref: "paper",
                y0: 0,
                y1: 1,
                line: { color: p.green, dash: "5px,4px" },
              },
            ]
          : [],
      },
      latencies.value.map((value, i) => ({ [key]: value, share: latencies.share[i] })),
      {
        title: name,
        note:
          (limit ? `goal ${limit} ms: ${percent(share)} keep it` : `median ${digits(run[`median_${goal}_ms`])} ms`) +
          (before ? " · dashed: pinned" : ""),
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
      xaxis: { title: "requests/s", rangemode: "tozero" },
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
        ? `Up to ${digits(best)} requests/s, ${percent(rates.share, 0)} keep the goals`
        : "Not even single requests keep the goals",
      note: `${Object.entries(rates.goodput)
        .map(([name, limit]) => `${name.toUpperCase()} ≤ ${limit} ms`)
        .join(", ")} · ${tried.length} rates simulated · click one to simulate it`,
    },
  );
}

export function simulationCharts(host, command, rateCommand) {
  const rates = chart(host, {
    name: "goodput",
    title: "",
    height: 340,
    command: rateCommand,
    onpick: (point) => setView({ sim_request_rate: String(Number(point.customdata.toPrecision(4))) }),
  });
  const time = chart(host, { name: "timeline", title: "", height: 460, command });
  const place = h("div", { class: "two three" });
  host.append(place);
  const spreads = Object.fromEntries(
    SPREAD.map(([key, name]) => [key, chart(place, { name: `cdf-${key}`, title: name, height: 270, command })]),
  );
  return {
    draw(run, capacity, before) {
      const served = run && run.completed > 0;
      rates.element.hidden = !capacity?.tried?.length;
      time.element.hidden = place.hidden = !served;
      if (capacity?.tried?.length) byRate(rates, capacity);
      if (served) {
        timeline(time, run);
        spread(spreads, run, before);
      }
    },
  };
}
