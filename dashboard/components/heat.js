// Requests by time and latency on a canvas. A brush, a click or Enter sends what is selected; Escape clears it.
const LEFT = 54, RIGHT = 10, BELOW = 20, FAILED = 12, GAP = 5, EVENT = 15;
const EVERY = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const TICKS = [1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000];

export default function ({ data, parentElement, setTriggerValue }) {
  const wrap = parentElement.querySelector(".wrap"), canvas = wrap.querySelector("canvas");
  canvas.setAttribute("aria-label", data.name);
  const tip = wrap.querySelector(".tip"), style = name => getComputedStyle(wrap).getPropertyValue(name).trim();
  const { columns: nx, rows: ny, start, column_s: step, edges_s: edges } = data;
  const cells = new Map(), failed = new Map(), other = new Map();
  for (const [x, y, n, bad, fails] of data.cells) {
    if (y === null) other.set(x, n - fails);
    else cells.set(x * ny + y, [n, bad]);
    if (fails) failed.set(x, (failed.get(x) || 0) + fails);
  }
  const most = Math.log1p(Math.max(1, ...[...cells.values()].map(([n]) => n)));
  const mostFailed = Math.log1p(Math.max(1, ...failed.values()));
  const size = step >= 60 ? {} : { second: "2-digit" };
  const format = options => new Intl.DateTimeFormat("en-GB", { timeZone: data.zone, hour12: false, ...options });
  const time = format({ hour: "2-digit", minute: "2-digit", ...size });
  const day = format({ day: "numeric", month: "short" });
  const parts = format({ year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", hourCycle: "h23" });
  const spansDays = step * nx > 86400 * 1.5;
  const at = x => new Date((start + x * step) * 1000);
  const clock = x => (spansDays ? `${day.format(at(x))} ` : "") + time.format(at(x));
  const count = n => Math.round(n).toLocaleString("en-GB").replaceAll(",", "\u202f");

  function seconds(s) {
    if (s >= 60) return `${+(s / 60).toPrecision(2)} min`;
    return s >= 1 ? `${+s.toPrecision(3)} s` : `${+(s * 1000).toPrecision(3)} ms`;
  }
  const low = Math.log(edges[0]), high = Math.log(edges[ny]);
  const row = s => (Math.log(s) - low) / (high - low) * ny;
  const value = y => Math.exp(low + (high - low) * y / ny);
  const column = t => (t - start) / step;

  let selected = data.selection && {
    x0: column(data.selection.t0), x1: column(data.selection.t1), failed: data.selection.failed,
    y0: data.selection.lo ? row(data.selection.lo) : 0, y1: data.selection.hi ? row(data.selection.hi) : ny,
  };
  let width = 0, drag = null, cursor = null, lanes = [];
  const height = data.height;
  const top = () => 6 + EVENT * lanes.length, bottom = () => height - BELOW - FAILED - GAP;
  const px = x => LEFT + (width - LEFT - RIGHT) * x / nx;
  const py = y => top() + (bottom() - top()) * (1 - y / ny);

  // Names of events stand in as many lanes as they need not to cover each other; what fits in none has no name.
  function place(g) {
    lanes = data.events.length ? [[]] : [];
    return data.events.map(event => {
      const x0 = Math.max(px(0), px(column(event.t0))), x1 = Math.min(px(nx), Math.max(px(column(event.t1)), x0 + 2));
      const name = event.label, long = g.measureText(name).width;
      const left = Math.max(LEFT, Math.min(x0, width - RIGHT - long));
      const right = Math.max(left + long, x1) + 10;
      let lane = lanes.findIndex(taken => taken.every(([from, to]) => right < from || left > to));
      if (lane < 0 && lanes.length < data.lanes) lane = lanes.push([]) - 1;
      if (lane >= 0) lanes[lane].push([left, right]);
      return { x0, x1, left, lane, name, colour: event.colour };
    });
  }

  function colour(share, weight) {
    const alpha = 0.22 + 0.78 * weight;
    if (share >= 0.5) return `rgba(225, 50, 60, ${alpha})`;
    return share >= 0.02 ? `rgba(245, 158, 11, ${alpha})` : `rgba(92, 124, 170, ${alpha})`;
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, g = canvas.getContext("2d");
    width = wrap.clientWidth;
    canvas.style.width = `${width}px`, canvas.style.height = `${height}px`;
    canvas.width = width * ratio, canvas.height = height * ratio;
    g.scale(ratio, ratio);
    g.font = `11px ${style("--st-font") || "sans-serif"}`;
    const text = style("--st-text-color") || "#222", paper = style("--st-background-color") || "#fff";
    const events = place(g), wide = (px(1) - px(0)), tall = py(0) - py(1);
    for (const event of events) {
      const y = 10 + EVENT * event.lane;
      g.fillStyle = event.colour, g.fillRect(event.x0, event.lane < 0 ? top() - 4 : y + 2, event.x1 - event.x0, event.lane < 0 ? 2 : 3);
      g.fillStyle = text;
      if (event.lane >= 0) g.fillText(event.name, event.left, y);
    }
    for (const [place, [n, bad]] of cells) {
      const x = Math.floor(place / ny), y = place % ny, left = px(x), up = py(y + 1);
      g.fillStyle = colour(bad / n, Math.log1p(n) / most);
      g.fillRect(left, up, Math.max(1, wide - 0.5), Math.max(1, tall - 0.5));
      if (bad / n >= 0.5 && wide > 4) {  // not by its colour alone
        g.strokeStyle = paper, g.lineWidth = 1, g.beginPath();
        g.moveTo(left + 1, up + tall - 1.5), g.lineTo(left + wide - 1.5, up + 1), g.stroke();
      }
    }
    for (const [x, n] of failed) {
      g.fillStyle = colour(1, Math.log1p(n) / mostFailed);
      g.fillRect(px(x), bottom() + GAP, Math.max(1, wide - 0.5), FAILED);
    }
    axes(g, text);
    for (const line of data.lines) {
      g.strokeStyle = line.colour, g.lineWidth = 1.6, g.setLineDash(line.dotted ? [2, 3] : []), g.beginPath();
      let on = false;
      line.values_s.forEach((s, x) => {
        if (s === null) on = false;
        else { g[on ? "lineTo" : "moveTo"](px(x + 0.5), py(row(s))); on = true; }
      });
      g.stroke(), g.setLineDash([]);
    }
    let named = null;  // of the label before: its height, and where it ends
    for (const limit of [...data.thresholds_s].sort((a, b) => b - a)) {
      const y = py(row(limit)), label = `≤ ${seconds(limit)}`;
      if (y < top() || y > bottom()) continue;
      g.strokeStyle = g.fillStyle = "#ef4444", g.lineWidth = 1.2, g.setLineDash([5, 4]), g.beginPath();
      g.moveTo(LEFT, y), g.lineTo(width - RIGHT, y), g.stroke(), g.setLineDash([]);
      const left = named && y - named.y < 12 ? named.end + 8 : LEFT + 4;
      named = { y, end: left + g.measureText(label).width };
      g.globalAlpha = 0.85, g.fillStyle = paper, g.fillRect(left - 2, y - 14, named.end - left + 4, 12);  // no curve crosses it
      g.globalAlpha = 1, g.fillStyle = "#d92d2d", g.fillText(label, left, y - 4);
    }
    if (selected) box(g, selected, text);
    if (cursor) {
      g.strokeStyle = text, g.lineWidth = 2;
      g.strokeRect(px(cursor.x), py(cursor.y + 1), wide, tall);
    }
  }

  function box(g, one, ink) {
    const x0 = Math.max(px(0), px(one.x0)), x1 = Math.min(px(nx), px(one.x1));
    const y0 = one.failed ? bottom() + GAP : Math.max(top(), py(one.y1));
    const y1 = one.failed ? bottom() + GAP + FAILED : Math.min(bottom(), py(one.y0));
    g.fillStyle = ink, g.globalAlpha = 0.1, g.fillRect(x0, y0, x1 - x0, y1 - y0), g.globalAlpha = 1;
    g.strokeStyle = ink, g.lineWidth = 1.5, g.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  function axes(g, ink) {
    g.fillStyle = ink, g.globalAlpha = 0.7;
    let last = Infinity;
    for (const s of TICKS) {
      const y = py(row(s));
      if (y < top() + 4 || y > bottom() + 3 || last - y < 14) continue;
      g.fillText(seconds(s), 2, y + 4);
      last = y;
    }
    g.fillText("failed", 2, bottom() + GAP + FAILED - 2);
    const end = start + nx * step, room = Math.max(2, (width - LEFT) / 90), shift = ahead();
    const every = EVERY.find(one => (end - start) / one <= room) || EVERY.at(-1);
    g.textAlign = "center";
    for (let t = Math.ceil((start + shift) / every) * every - shift; t < end; t += every) {
      const x = px(column(t)), isDay = spansDays && (t + shift) % 86400 === 0;
      if (x < width - 16) g.fillText((isDay ? day : time).format(t * 1000), x, height - 5);
      g.fillRect(x, bottom() + GAP + FAILED, 1, 3);
    }
    g.textAlign = "left", g.globalAlpha = 1;
  }

  // Seconds by which the zone's clock is ahead of UTC, so that ticks are at whole hours of the reader.
  function ahead() {
    const p = Object.fromEntries(parts.formatToParts(start * 1000).map(one => [one.type, +one.value]));
    return Date.UTC(p.year, p.month - 1, p.day, p.hour, p.minute) / 1000 - Math.floor(start / 60) * 60;
  }

  function told(x, y) {
    const unknown = other.get(x) ? `, ${count(other.get(x))} without this latency` : "";
    if (y < 0) return `${clock(x)} · ${count(failed.get(x) || 0)} failed${unknown}`;
    const [n, bad] = cells.get(x * ny + y) || [0, 0];
    return `${clock(x)} · ${seconds(edges[y])} – ${seconds(edges[y + 1])} · ${count(n)} requests, ${count(bad)} bad`;
  }

  function say(x, y) {
    const known = y < 0 ? failed.get(x) || other.get(x) : cells.has(x * ny + y);
    tip.style.display = known || cursor ? "block" : "none";
    if (tip.style.display === "none") return;
    tip.textContent = told(x, y);
    tip.style.left = `${Math.max(0, Math.min(width - tip.offsetWidth - 4, px(x) + 14))}px`;
    tip.style.top = `${Math.min(height - 44, (y < 0 ? bottom() : py(y)) + 10)}px`;
  }

  // The place of the pointer in cells. A y below 0 is the row of failed requests, and one above ny the events.
  function where(event) {
    const area = canvas.getBoundingClientRect(), up = event.clientY - area.top;
    const x = Math.min(nx - 1e-6, Math.max(0, (event.clientX - area.left - LEFT) / (width - LEFT - RIGHT) * nx));
    return { x, y: up > bottom() + GAP / 2 ? -1 : (bottom() - up) / (bottom() - top()) * ny };
  }

  function send(one) {
    selected = one;
    draw();
    if (!one) return setTriggerValue("brushed", { cleared: true });
    const whole = one.y0 <= 0 && one.y1 >= ny;
    setTriggerValue("brushed", {
      t0: start + one.x0 * step, t1: start + one.x1 * step, failed: !!one.failed,
      lo: one.failed || whole ? null : value(one.y0), hi: one.failed || whole ? null : value(one.y1),
    });
  }

  const between = (a, b) => {
    const inMap = a.y >= 0 && a.y <= ny, clip = y => Math.min(ny, Math.max(0, y));
    const x0 = Math.floor(Math.min(a.x, b.x)), x1 = Math.floor(Math.max(a.x, b.x)) + 1;
    if (a.y < 0) return { x0, x1, y0: 0, y1: ny, failed: true };
    if (!inMap) return { x0, x1, y0: 0, y1: ny };
    return { x0, x1, y0: Math.floor(clip(Math.min(a.y, b.y))), y1: Math.max(1, Math.ceil(clip(Math.max(a.y, b.y)))) };
  };
  canvas.onpointerdown = event => { canvas.setPointerCapture(event.pointerId); drag = where(event); cursor = null; };
  canvas.onpointermove = event => {
    const here = where(event);
    if (drag) { selected = between(drag, here); draw(); }
    else if (here.y <= ny) say(Math.floor(here.x), Math.floor(here.y));
  };
  canvas.onpointerup = event => {
    if (!drag) return;
    const here = where(event), from = drag;
    drag = null;
    const still = Math.abs(here.x - from.x) < 0.6 && Math.abs(here.y - from.y) < 0.6;
    const x = Math.floor(here.x), empty = here.y < 0 ? !failed.has(x) : !cells.has(x * ny + Math.floor(here.y));
    if (still && empty) { if (selected) send(null); return; }
    send(between(from, here));
  };
  canvas.ondblclick = () => {
    if (selected) setTriggerValue("zoomed", { t0: start + selected.x0 * step, t1: start + selected.x1 * step });
  };
  canvas.onpointerleave = () => { if (!cursor) tip.style.display = "none"; };
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  wrap.onkeydown = event => {
    if (event.key === "Escape") {
      cursor = null, tip.style.display = "none";
      return selected ? send(null) : draw();
    }
    if (event.key === "Enter" && cursor) return send(between(cursor.from || cursor, cursor));
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const old = cursor || { x: Math.floor(nx / 2), y: Math.floor(ny / 2) };
    cursor = {
      x: Math.min(nx - 1, Math.max(0, old.x + move[0])), y: Math.min(ny - 1, Math.max(0, old.y + move[1])),
      from: event.shiftKey ? old.from || { x: old.x, y: old.y } : null,
    };
    if (cursor.from) selected = between(cursor.from, cursor);
    draw();
    say(cursor.x, cursor.y);
  };
  const seen = new ResizeObserver(draw), scheme = matchMedia("(prefers-color-scheme: dark)");
  const later = () => setTimeout(draw, 200);  // Streamlit changes its colours first
  seen.observe(wrap);
  scheme.addEventListener("change", later);
  return () => { seen.disconnect(); scheme.removeEventListener("change", later); };
}
