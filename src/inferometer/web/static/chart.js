// Charts, drawn by plotly or by ourselves, each in its frame.
import { find, h, say, show } from "./dom.js";
import { framed } from "./frame.js";
import { standalone } from "./picture.js";
import { palette } from "./theme.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

// Axes and fonts of this theme; what a chart says itself goes on top.
export function plain(extra = {}) {
  const p = palette();
  const axis = {
    gridcolor: p.grid,
    zerolinecolor: p.faint,
    linecolor: p.faint,
    tickcolor: p.faint,
    ticks: "outside",
    ticklen: 4,
    automargin: true,
    title: { standoff: 8, font: { size: 12 } },
  };
  const merge = (own) => ({
    ...axis,
    ...own,
    title: { ...axis.title, ...(typeof own?.title === "string" ? { text: own.title } : own?.title) },
  });
  const axes = Object.fromEntries(
    Object.keys(extra)
      .filter((k) => /^[xy]axis\d*$/.test(k))
      .map((k) => [k, merge(extra[k])]),
  );
  return {
    font: {
      family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
      size: 12,
      color: p.muted,
    },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 44 },
    hoverlabel: { bgcolor: p.panel, bordercolor: p.faint, font: { color: p.ink }, align: "left" },
    legend: {
      orientation: "h",
      y: 1.02,
      yanchor: "bottom",
      x: 0,
      traceorder: "normal",
      font: { size: 11.5 },
      bgcolor: "rgba(0,0,0,0)",
    },
    colorway: [p.blue, p.vermillion, p.green, p.orange, p.purple, p.sky, p.grey],
    xaxis: merge({}),
    yaxis: merge({}),
    ...extra,
    ...axes,
  };
}

// The library of charts is large, so it is loaded with the first of them; a page from disk has it inside, as text.
let loading = null;
export function loadCharts() {
  loading ??= new Promise((done, fail) => {
    const inside = find("plotly");
    const failed = () => {
      loading = null; // the next chart tries again
      fail(new Error("the chart library could not be loaded"));
    };
    const script = h("script", { onload: done, onerror: failed });
    if (inside) script.textContent = inside.textContent;
    else script.src = new URL("plotly.js", import.meta.url);
    document.head.append(script);
    if (inside) done();
  });
  return loading;
}

// chart(host, { name, title, note, height }) -> { draw(traces, layout, rows), element }
export function chart(host, { height = 380, onpick = null, ...about }) {
  let rows = [];
  let newest = null; // what waits for the library
  let ready = false;
  const box = h("div", { class: "plot", style: `height:${height}px` });
  const picture = async () => {
    const size = { width: Math.max(900, box.clientWidth), height: parseFloat(box.style.height) };
    const layout = { ...box.layout, ...size, autosize: false };
    const url = await window.Plotly.toImage({ data: box.data, layout }, { format: "svg", ...size });
    const text = decodeURIComponent(url.slice(url.indexOf(",") + 1));
    return new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  };
  const frame = framed(host, box, { ...about, rows: () => rows, picture });
  const paint = () => {
    const [traces, layout] = newest;
    window.Plotly.react(box, traces, { ...plain(layout), height: undefined, autosize: true }, CONFIG);
    if (!ready && onpick) box.on("plotly_click", (event) => onpick(event.points[0]));
    ready = true;
    frame.drawn();
  };
  new ResizeObserver(() => ready && box.clientWidth && window.Plotly.Plots.resize(box)).observe(box);
  return {
    element: frame.element,
    box,
    draw(traces, layout, data, captions = {}) {
      rows = data;
      newest = [traces, layout];
      frame.caption(captions);
      if (captions.height) box.style.height = `${captions.height}px`;
      if (window.Plotly) paint();
      else loadCharts().then(paint, (error) => say(error.message));
    },
  };
}

// The same frame around an SVG of our own.
export function drawing(host, about) {
  const box = h("div", { class: "drawing" });
  const frame = framed(host, box, { ...about, picture: async () => standalone(box.querySelector("svg")) });
  return {
    box,
    draw(svg, captions = {}) {
      show(box, svg);
      frame.caption(captions);
      frame.drawn();
    },
  };
}

// Ticks of a log axis, one a decade: decades(1e9, 1e15, "FLOP/s")
export function decades(low, high, text) {
  const ticks = [];
  for (let e = Math.ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; e++) ticks.push(10 ** e);
  const every = Math.ceil(ticks.length / 9);
  const shown = ticks.filter((_, i) => i % every === 0);
  return { tickvals: shown, ticktext: shown.map(text) };
}

// Ticks at 1, 2 and 5 of every decade, for log axes that span less than two of them.
export function halfDecades(low, high, text) {
  if (high / low > 400) return decades(low, high, text);
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++)
    for (const m of [1, 2, 5]) ticks.push(m * 10 ** e);
  const inside = ticks.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  return { tickvals: inside, ticktext: inside.map(text) };
}
