// Tabs by WAI-ARIA's pattern: arrows move, Home and End jump. Each view is { id, label, draw(host) }.
import { find, h, show } from "./dom.js";
import { on, setView, state } from "./state.js";
import { onTheme } from "./theme.js";

export function startTabs(views) {
  const bar = find("tabs");
  const host = find("view");
  const chosen = () => views.find((v) => v.id === state.view.tab) ?? views[0];
  const buttons = views.map((view) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${view.id}`,
        "aria-controls": "view",
        onclick: () => setView({ tab: view.id === views[0].id ? null : view.id, op: null }),
      },
      view.label,
    ),
  );
  bar.addEventListener("keydown", (event) => {
    const now = views.indexOf(chosen());
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: views.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const button = buttons[(next + views.length) % views.length];
    button.click();
    button.focus();
  });
  show(bar, buttons);
  const mounted = new Map(); // view -> { place, draw }: a view is made when it is first opened, and keeps what it has
  let open = null;
  const draw = (detail = {}) => {
    const view = chosen();
    if (view !== open) {
      open = view;
      document.body.classList.toggle("folds", Boolean(view.folds)); // it is about more than the headline's plan
      document.body.classList.toggle("apart", Boolean(view.apart)); // it is about something else
      buttons.forEach((button, i) => {
        const selected = views[i] === view;
        button.setAttribute("aria-selected", String(selected));
        button.tabIndex = selected ? 0 : -1;
        if (selected) host.setAttribute("aria-labelledby", button.id);
      });
      bar.scrollLeft = buttons[views.indexOf(view)].offsetLeft - 40; // scrollIntoView would move where Tab begins
    }
    const ready = state.report || view.alone;
    if (ready && !mounted.has(view)) {
      const place = h("div", { class: `view-${view.id}${view.asks ? "" : " of-report"}` });
      if (!mounted.size) show(host); // what stood there before the first answer
      host.append(place);
      mounted.set(view, { place, draw: view.mount(place).draw });
    }
    for (const [one, { place }] of mounted) place.hidden = one !== view;
    if (ready) mounted.get(view).draw(detail);
  };
  let due = 0; // charts take longer than numbers: they are drawn with the next frame, once for all answers by then
  on("answer", () => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      draw({ answer: true });
    });
  });
  on("view", (detail) => !detail.quiet && draw(detail));
  onTheme(() => draw({ theme: true }));
  return draw;
}
