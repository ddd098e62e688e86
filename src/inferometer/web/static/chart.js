// A chart with its three offers: data (CSV), picture (SVG, PNG), and the command that makes the same figures.
import { copy, h, save, show } from "./dom.js";
import { csv } from "./format.js";
import { state } from "./state.js";
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

function offers(name, rows, command, picture) {
  const button = (text, title, act) =>
    h("button", { type: "button", title, "aria-label": `${title}: ${name}`, onclick: act }, text);
  return h(
    "div",
    { class: "offers" },
    button("CSV", "Data as CSV", () => save(`${name}.csv`, csv(rows()), "text/csv")),
    button("SVG", "Picture as SVG", () => picture("svg")),
    button("PNG", "Picture as PNG", () => picture("png")),
    button("CLI", "Copy the command that reproduces it", () => copy(command(), "command")),
  );
}

const analysis = () => state.report?.command ?? "";

// chart(host, { name, title, note, height }) -> { draw(traces, layout, rows), element }
export function chart(host, { name, title, note = "", height = 380, command = analysis, onpick = null }) {
  let rows = [];
  const box = h("div", { class: "plot", style: `height:${height}px` });
  const caption = h("span", { class: "note" }, note);
  const heading = h("h3", {}, title);
  const picture = async (format) => {
    const p = palette();
    const kept = box.layout.paper_bgcolor;
    await window.Plotly.relayout(box, { paper_bgcolor: p.paper });
    const url = await window.Plotly.toImage(box, {
      format,
      width: Math.max(900, box.clientWidth),
      height: box.clientHeight,
      scale: format === "png" ? 2 : 1,
    });
    await window.Plotly.relayout(box, { paper_bgcolor: kept });
    const data =
      format === "svg"
        ? new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" })
        : unwrapped(url);
    save(`${name}.${format}`, data);
  };
  const element = h(
    "figure",
    { class: "chart", id: `chart-${name}` },
    h(
      "figcaption",
      {},
      h("div", {}, heading, caption),
      offers(name, () => rows, command, picture),
    ),
    box,
  );
  host.append(element);
  let ready = false;
  new ResizeObserver(() => ready && box.clientWidth && window.Plotly.Plots.resize(box)).observe(box);
  return {
    element,
    box,
    draw(traces, layout, data, captions = {}) {
      rows = data;
      if (captions.title !== undefined) heading.textContent = captions.title;
      if (captions.note !== undefined) caption.textContent = captions.note;
      if (captions.height) box.style.height = `${captions.height}px`;
      window.Plotly.react(box, traces, { ...plain(layout), height: undefined, autosize: true }, CONFIG);
      if (!ready && onpick) box.on("plotly_click", (event) => onpick(event.points[0]));
      ready = true;
    },
  };
}

function unwrapped(url) {
  const raw = atob(url.slice(url.indexOf(",") + 1));
  return new Blob([Uint8Array.from(raw, (letter) => letter.charCodeAt(0))], { type: "image/png" });
}

// The same frame around an SVG of our own.
export function drawing(host, { name, title, note = "", rows, command = analysis }) {
  const box = h("div", { class: "drawing" });
  const heading = h("h3", {}, title);
  const caption = h("span", { class: "note" }, note);
  const picture = (format) => {
    const svg = box.querySelector("svg").cloneNode(true);
    svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    svg.setAttribute("style", `background:${palette().paper}`);
    const text = new XMLSerializer().serializeToString(svg);
    if (format === "svg") return save(`${name}.svg`, text, "image/svg+xml");
    const [wide, high] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
    const image = new Image();
    image.onload = () => {
      const canvas = h("canvas", { width: wide * 2, height: high * 2 });
      const pen = canvas.getContext("2d");
      pen.fillStyle = palette().paper;
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(`${name}.png`, blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  };
  host.append(
    h(
      "figure",
      { class: "chart", id: `chart-${name}` },
      h("figcaption", {}, h("div", {}, heading, caption), offers(name, rows, command, picture)),
      box,
    ),
  );
  return {
    box,
    draw(svg, captions = {}) {
      show(box, svg);
      if (captions.title !== undefined) heading.textContent = captions.title;
      if (captions.note !== undefined) caption.textContent = captions.note;
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
