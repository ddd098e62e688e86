// Pictures that stand alone: above the drawing its title and the plan, below it the command, the date and the version.
import { h, s } from "./dom.js";
import { state } from "./state.js";
import { palette } from "./theme.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const MARGIN = 16;
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "display", "font-size", "font-weight"];

// roofline-llama-3.1-8b-h200.svg, memory-llama-3.1-70b-4xh200.png; what is of no plan has its name alone
export function fileName(name, ending, { command = "", ofPlan }) {
  const parts = [name];
  if (state.report && /^inferometer /m.test(command)) {
    const { model, device, plan } = state.report;
    parts.push(model.name, `${ofPlan && plan.gpus > 1 ? `${plan.gpus}x` : ""}${device.name}`);
  }
  return `${parts.join("-").replaceAll(/[^\w.-]+/g, "-")}.${ending}`;
}

function planLine({ model, plan, device, engine }) {
  const precision = model.quantization?.mlp ?? model.dtype;
  return [model.name, `${plan.gpus} × ${device.label}`, `${engine.label} ${engine.version}`.trim(), precision]
    .filter(Boolean)
    .join(" · ");
}

// Lines of at most so many letters, broken at spaces.
function wrapped(text, letters) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= letters) lines.push("");
    lines.push([lines.pop(), word].filter(Boolean).join(" "));
  }
  return lines.filter(Boolean);
}

// A copy of an <svg> of the page that looks the same without the page's style sheets.
export function standalone(svg) {
  const copied = svg.cloneNode(true);
  const inside = (root) => [...root.querySelectorAll("[class], [style]")];
  const copies = inside(copied);
  inside(svg).forEach((original, i) => {
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[i].style.setProperty(name, style.getPropertyValue(name));
  });
  copied.removeAttribute("class");
  ["width", "height"].forEach((name) => copied.style.removeProperty(name)); // how far it is zoomed in the page
  return copied;
}

// captioned(svg, { title, note, command, ofPlan }): an <svg> with the drawing and what it is of
export function captioned(svg, { title, note, command, ofPlan }) {
  const p = palette();
  const box = svg.viewBox?.baseVal;
  const wide = Number.parseFloat(svg.getAttribute("width")) || box.width;
  const high = Number.parseFloat(svg.getAttribute("height")) || box.height;
  const width = Math.max(wide, 560) + 2 * MARGIN;
  const letters = (width - 2 * MARGIN) / 6.7; // of 12 px, about
  let y = MARGIN;
  const line = (text, size, attributes) => {
    y += size * 1.4;
    return s("text", { x: MARGIN, y, "font-size": size, fill: p.muted, ...attributes }, text);
  };
  const lines = (text, size, attributes = {}) =>
    wrapped(text, (letters * 12) / size).map((one) => line(one, size, attributes));
  const tab = document.querySelector("[role=tab][aria-selected=true]")?.textContent;
  const above = [
    lines([tab, title].filter(Boolean).join(" · "), 16, { fill: p.ink, "font-weight": 650 }),
    ofPlan && state.report ? lines(planLine(state.report), 12, { fill: p.ink }) : [],
    lines(note, 12),
  ];
  svg.setAttribute("x", (width - wide) / 2);
  svg.setAttribute("y", (y += 10));
  y += high;
  const made = `inferometer ${state.catalogue.version ?? ""}, ${new Date().toISOString().slice(0, 10)}`;
  const below = [
    lines(command.split("\n").at(-1), 10.5, { "font-family": "ui-monospace, monospace" }),
    lines(made, 10.5),
  ];
  const height = y + MARGIN;
  return s(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT },
    s("rect", { width, height, fill: p.paper }),
    above,
    svg,
    below,
  );
}

// The same as pixels, two for each.
export function asPng(svg) {
  const [width, height] = ["width", "height"].map((name) => Number(svg.getAttribute(name)));
  const text = new XMLSerializer().serializeToString(svg);
  return new Promise((done, fail) => {
    const image = new Image();
    image.onerror = () => fail(new Error("the browser cannot draw this picture"));
    image.onload = () => {
      const canvas = h("canvas", { width: width * 2, height: height * 2 });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(done);
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
}
