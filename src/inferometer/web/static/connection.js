// Whether the server is there. A question that finds none waits until it is back, and is then asked again.

const FIRST = 400; // ms until the server is looked for again; each time longer, up to LONGEST
const LONGEST = 10_000;

const listeners = [];
const now = { lost: null, outdated: false };
let returned = null; // promised while the server is away
let hurry = () => null; // ends a wait early

// Called with { lost: "why" or null, outdated: whether the server has another version of this page }
export function onConnection(listener) {
  listeners.push(listener);
}

function tell(changes) {
  Object.assign(now, changes);
  listeners.forEach((listener) => listener({ ...now }));
}

const own = import.meta.url.match(/\/static\/([0-9a-f]+)\//)?.[1]; // the version that this page is of

// What every answer says beside its content.
export function heard(response) {
  const version = response.headers.get("x-page-version");
  if (own && version && version !== own && !now.outdated) tell({ outdated: true });
}

const alive = () =>
  fetch("/healthz/live", { cache: "no-store" }).then(
    (response) => response.ok,
    () => false,
  );

const pause = (wait) =>
  new Promise((done) => {
    const timer = setTimeout(done, wait);
    hurry = () => {
      clearTimeout(timer);
      done();
    };
  });

async function wait(why) {
  tell({ lost: why });
  for (let ms = FIRST; ; ms = Math.min(ms * 1.7, LONGEST)) {
    await pause(ms);
    if (await alive()) break;
  }
  returned = null;
  tell({ lost: null });
}

// Until the server answers again; all who wait share one search for it.
export function back(why) {
  returned ??= wait(why);
  return returned;
}

export const tryNow = () => hurry();
addEventListener("online", () => hurry());
document.addEventListener("visibilitychange", () => document.hidden || hurry());
