// A large drawing in the page: zoom by buttons, keys, Ctrl and the wheel or two fingers; pan by dragging; a minimap.
// The drawing stands in the page at its full height, so that the page scrolls over it as over everything else.
import { h, show } from "./dom.js";

const STEP = 1.25;
const RANGE = [0.1, 3];
const READABLE = 0.66; // a drawing that is wider than its frame is drawn this small by itself, not smaller
const CROPPED = 0.8; // one that would have to be smaller is cut instead
const ARROWS = { ArrowLeft: [-80, 0], ArrowRight: [80, 0], ArrowUp: [0, -80], ArrowDown: [0, 80] };
const MAP = { wide: 84, high: 220 };

const clamp = (value, [least, most]) => Math.min(most, Math.max(least, value));

// viewport(scroller, { top(), onzoom(word) }) -> { rail, draw(svg, zoom), sight() }
// zoom: "fit", a scale such as 0.8, or null for the width of the frame; onzoom hears what the user chose.
export function viewport(scroller, { top, onzoom }) {
  let svg = null;
  let scale = 1;
  const level = h("output", { class: "level", "aria-label": "Zoom" });
  const button = (word, title, act) => h("button", { type: "button", title, "aria-label": title, onclick: act }, word);
  const sight = h("div", { class: "sight" });
  const map = h("div", { class: "minimap", "aria-hidden": "true", hidden: true });
  const natural = () => [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const room = () => innerHeight - top() - 24;
  const byWidth = () => {
    const fitting = (scroller.clientWidth - 20) / natural()[0];
    return fitting < READABLE ? CROPPED : Math.min(1, fitting);
  };
  const whole = () => Math.min(1, (scroller.clientWidth - 20) / natural()[0], room() / (natural()[1] + 16));

  function look() {
    if (!svg || map.hidden) return;
    const [all, seen] = [svg.getBoundingClientRect(), scroller.getBoundingClientRect()];
    const box = map.firstChild.getBoundingClientRect();
    const part = (value, [from, size]) => clamp((value - from) / size, [0, 1]);
    const [x0, x1] = [seen.left, seen.right].map((x) => part(x, [all.left, all.width]));
    const [y0, y1] = [top(), innerHeight].map((y) => part(y, [all.top, all.height]));
    sight.style.cssText =
      `left:${x0 * box.width}px;width:${(x1 - x0) * box.width}px;` +
      `top:${y0 * box.height}px;height:${(y1 - y0) * box.height}px`;
  }

  function paint() {
    const [wide, high] = natural();
    Object.assign(svg.style, { width: `${wide * scale}px`, height: `${high * scale}px` });
    level.textContent = `${Math.round(scale * 100)}%`;
    const larger = high * scale > room() * 1.15 || wide * scale > scroller.clientWidth + 1;
    map.hidden = !larger;
    scroller.classList.toggle("wider", wide * scale > scroller.clientWidth + 1);
    look();
  }

  // The point under (x, y) of the window stays where it is.
  function zoomTo(next, x, y, word) {
    const before = svg.getBoundingClientRect();
    const [px, py] = [(x - before.left) / before.width, (y - before.top) / before.height];
    scale = clamp(next, RANGE);
    paint();
    const after = svg.getBoundingClientRect();
    scroller.scrollLeft += after.left + px * after.width - x;
    scrollBy({ top: after.top + py * after.height - y, behavior: "instant" });
    onzoom(word ?? String(Number(scale.toFixed(2))));
    look();
  }

  function zoomBy(factor) {
    const seen = scroller.getBoundingClientRect();
    const middle = (Math.max(seen.top, top()) + Math.min(seen.bottom, innerHeight)) / 2;
    zoomTo(scale * factor, (seen.left + seen.right) / 2, middle);
  }

  function fit() {
    scale = whole();
    paint();
    onzoom("fit");
    scrollBy({ top: scroller.getBoundingClientRect().top - top() - 4, behavior: "instant" });
    look();
  }

  function steer(event) {
    const act = { "+": () => zoomBy(STEP), "=": () => zoomBy(STEP), "-": () => zoomBy(1 / STEP), 0: fit }[event.key];
    const [dx, dy] = ARROWS[event.key] ?? [0, 0];
    if (event.ctrlKey || event.metaKey || event.altKey || (!act && !dx && !dy)) return;
    event.preventDefault();
    if (act) return act();
    scroller.scrollLeft += dx;
    scrollBy({ top: dy, behavior: "instant" });
  }

  // From the minimap: the middle of what is seen goes where the pointer is.
  function jump(event) {
    const box = map.firstChild.getBoundingClientRect();
    const all = svg.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    scroller.scrollLeft +=
      all.left + x * all.width - (scroller.getBoundingClientRect().left + scroller.clientWidth / 2);
    scrollBy({ top: all.top + y * all.height - (top() + innerHeight) / 2, behavior: "instant" });
    look();
  }

  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    jump(event);
  });
  map.addEventListener("pointermove", (event) => event.buttons && jump(event));
  scroller.addEventListener("keydown", steer);
  scroller.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      zoomTo(scale * Math.exp(-clamp(event.deltaY, [-60, 60]) / 250), event.clientX, event.clientY);
    },
    { passive: false },
  );
  startDragging(scroller);
  startPinching(scroller, (factor, x, y) => zoomTo(scale * factor, x, y));
  scroller.addEventListener("scroll", look, { passive: true });
  addEventListener("scroll", look, { passive: true });
  new ResizeObserver(() => svg?.isConnected && scroller.clientWidth && paint()).observe(scroller);

  const rail = h(
    "div",
    { class: "rail" },
    h(
      "div",
      { class: "zoom", role: "group", "aria-label": "Zoom" },
      button("+", "Zoom in (+)", () => zoomBy(STEP)),
      level,
      button("−", "Zoom out (−)", () => zoomBy(1 / STEP)),
      button("Fit", "Fit the whole drawing into the window (0)", fit),
      button("100%", "100%: actual size", () => zoomBy(1 / scale)),
    ),
    map,
  );
  return {
    rail,
    draw(drawn, zoom) {
      svg = drawn;
      scale = zoom === "fit" ? whole() : Number(zoom) > 0 ? clamp(Number(zoom), RANGE) : byWidth();
      show(map, miniature(svg, natural()), sight);
      paint();
    },
  };
}

// The boxes of a drawing alone, with nothing that could be picked or read out.
const SHOWN = ["x", "y", "width", "height", "rx", "transform", "fill", "stroke", "viewBox"];

function miniature(svg, [wide, high]) {
  const small = svg.cloneNode(true);
  small.querySelectorAll("text, path, defs, title").forEach((one) => one.remove());
  small.querySelectorAll(".op rect:first-child").forEach((one) => one.setAttribute("fill", one.getAttribute("stroke")));
  for (const one of [small, ...small.querySelectorAll("*")])
    one.getAttributeNames().forEach((name) => SHOWN.includes(name) || one.removeAttribute(name));
  const scale = Math.min(MAP.wide / wide, MAP.high / high);
  small.style.cssText = `width:${wide * scale}px;height:${high * scale}px`;
  return small;
}

// A mouse drags the drawing; a click that did not move is a click.
function startDragging(scroller) {
  let from = null;
  scroller.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0)
      from = { x: event.clientX, y: event.clientY, moved: false };
  });
  scroller.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return (from = null);
    const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
    if (!from.moved && Math.hypot(dx, dy) < 5) return undefined;
    if (!from.moved) scroller.setPointerCapture(event.pointerId);
    scroller.classList.add("dragging");
    scroller.scrollLeft -= dx;
    scrollBy({ top: -dy, behavior: "instant" });
    from = { x: event.clientX, y: event.clientY, moved: true };
    return undefined;
  });
  const end = () => scroller.classList.remove("dragging");
  scroller.addEventListener("pointerup", end);
  scroller.addEventListener("pointercancel", end);
  scroller.addEventListener(
    "click",
    (event) => {
      if (from?.moved) event.stopPropagation();
      from = null;
    },
    true,
  );
}

// Two fingers: pinched(factor, x, y) with how much further apart they are, around their middle.
function startPinching(scroller, pinched) {
  let apart = 0;
  const distance = ([a, b]) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  scroller.addEventListener(
    "touchstart",
    (event) => (apart = event.touches.length === 2 ? distance(event.touches) : 0),
    {
      passive: true,
    },
  );
  scroller.addEventListener(
    "touchmove",
    (event) => {
      if (event.touches.length !== 2 || !apart) return;
      event.preventDefault();
      const [a, b] = event.touches;
      const now = distance(event.touches);
      pinched(now / apart, (a.clientX + b.clientX) / 2, (a.clientY + b.clientY) / 2);
      apart = now;
    },
    { passive: false },
  );
}
