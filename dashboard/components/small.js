// Small line charts with one shared crosshair. data = {zone, times: [ms], step: ms, span: [ms, ms], height, charts: [{title, unit, log, top,
//   bars, lines: [{name, colour, values: [number|null], ghost: [number|null]|null, fill}], limits: [{at, name}]}], bands: [{from, to, text, colour}]}
// Drag (or the space bar, arrows and the space bar again) sends the trigger `brush`: [ms, ms]; with `clicks`, a click sends one bucket. Esc takes the cursor away.
const L = 46, R = 8, T = 6, B = 18;
const HOUR = 3600e3, TICKS = [1, 2, 5, 10, 15, 30].map(m => m * 60e3).concat([1, 2, 3, 6, 12, 24, 48, 168, 336].map(h => h * HOUR));
const short = (v, d = 3) => String(+v.toPrecision(d));
const FORMAT = {
  s: v => v >= 120 ? `${short(v / 60)} min` : v >= 1 ? `${short(v)} s` : v >= 1e-3 ? `${short(v * 1e3)} ms` : v > 0 ? `${short(v * 1e6)} µs` : '0 s',
  ratio: v => `${+(Math.floor(v * 1e4 + 1e-6) / 100).toFixed(2)} %`, rate: v => `${short(v)} /s`, count: v => String(Math.round(v)),
};
// Four or fewer round marks of an axis from 0 (linear), or one or two marks a decade (log).
function marks(low, high, log) {
  if (log) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) for (const m of high / low < 100 ? [1, 3] : [1]) {
      const at = m * 10 ** e;
      if (at >= low * .999 && at <= high * 1.001) found.push(at);
    }
    const every = Math.ceil(found.length / 4);
    return found.filter((_, i) => i % every === 0);
  }
  const rough = (high - low) / 3, e = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(m => m * e >= rough) * e, found = [];
  for (let at = Math.ceil(low / step) * step; at <= high * 1.0001; at += step) found.push(at);
  return found;
}
// The bounds of the y axis. A limit that would flatten the curves is left out, and named in the title's line.
function bounds(chart) {
  const shown = chart.lines.flatMap(line => [...line.values, ...(line.ghost || [])]).filter(v => v !== null && (!chart.log || v > 0));
  const most = shown.length ? Math.max(...shown) : 1, far = chart.log ? 10 : 2.5;
  const limits = chart.limits.filter(limit => limit.at <= most * far);
  let high = chart.top || Math.max(most, ...limits.map(limit => limit.at)), low = 0;
  if (chart.log) {
    low = Math.min(shown.length ? Math.min(...shown) : high / 10, ...limits.map(limit => limit.at)) / 1.3;
    high *= 1.3;
  } else if (!chart.top) high = high * 1.08 || 1;
  return { low, high, limits, far: chart.limits.filter(limit => !limits.includes(limit)) };
}
function words(chart) {
  const format = FORMAT[chart.unit], said = chart.lines.map(line => {
    const known = line.values.filter(v => v !== null);
    return known.length ? `${line.name}: last ${format(known.at(-1))}, least ${format(Math.min(...known))}, most ${format(Math.max(...known))}` : `${line.name}: no values`;
  });
  return `${chart.title}. ${said.join('; ')}`;
}
export default function ({ data, setTriggerValue, parentElement: root }) {
  const wrap = root.querySelector('.small'), css = getComputedStyle(wrap), colour = (name, other) => css.getPropertyValue(name).trim() || other;
  const fg = colour('--st-text-color', '#222'), grid = 'rgba(128,136,150,.22)', font = `11px ${colour('--st-font', 'sans-serif')}`;
  const [t0, t1] = data.span, n = data.times.length, dpr = window.devicePixelRatio || 1, days = t1 - t0 > 86400e3;
  const zoned = options => { try { return new Intl.DateTimeFormat('en-GB', { timeZone: data.zone, ...options }); } catch { return new Intl.DateTimeFormat('en-GB', { timeZone: 'UTC', ...options }); } };
  const hour = zoned({ hour: '2-digit', minute: '2-digit' }), day = zoned({ day: '2-digit', month: 'short' });
  const full = zoned({ ...(days ? { day: '2-digit', month: 'short' } : {}), hour: '2-digit', minute: '2-digit', ...(data.step < 60e3 ? { second: '2-digit' } : {}) });
  let cursor = wrap.cursor ?? null, drag = null, H = data.height;
  wrap.replaceChildren(...data.charts.map(chart => {
    const box = document.createElement('figure'), head = document.createElement('figcaption'), canvas = document.createElement('canvas');
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', words(chart));
    box.append(head, canvas);
    return box;
  }));
  const live = document.createElement('div');
  live.className = 'live';
  live.setAttribute('aria-live', 'polite');
  wrap.append(live);
  const boxes = [...wrap.querySelectorAll('figure')], axes = data.charts.map(bounds);
  const width = canvas => canvas.clientWidth || 200, x = (t, w) => L + (w - L - R) * (t - t0) / (t1 - t0 || 1);
  const middle = i => data.times[i] + data.step / 2, holds = (band, i) => band.from <= data.times[i] + data.step && band.to >= data.times[i];
  function head(k) {
    const chart = data.charts[k], format = FORMAT[chart.unit], parts = [];
    const add = (text, style) => { const span = document.createElement('span'); span.textContent = text; Object.assign(span.style, style); parts.push(span); };
    add(chart.title, { fontWeight: 600 });
    for (const line of chart.lines) {
      const at = cursor === null ? line.values.findLastIndex(v => v !== null) : cursor, v = at < 0 ? null : line.values[at];
      add(`${line.name} ${v === null ? '–' : format(v)}`, { textDecoration: `underline 2px ${line.colour}`, textUnderlineOffset: '3px' });
    }
    const ghosts = chart.lines.filter(line => line.ghost && cursor !== null && line.ghost[cursor] !== null);
    if (ghosts.length) add(`then ${ghosts.map(line => format(line.ghost[cursor])).join(', ')}`, { opacity: .65 });
    for (const limit of axes[k].far) add(`${limit.name} ${format(limit.at)}: above`, { opacity: .65 });
    boxes[k].firstChild.replaceChildren(...parts);
  }
  function path(g, values, w, y, fill) {
    g.beginPath();
    for (let i = 0, on = false, begun = 0; i <= n; i++) {
      const v = i < n ? values[i] : null;
      if (v === null) {
        if (on && i - begun === 1) g.rect(x(middle(i - 1), w) - 1.5, y(values[i - 1]) - 1.5, 3, 3);  // a point without neighbours
        if (on && fill && i - begun > 1) { g.lineTo(x(middle(i - 1), w), H - B); g.lineTo(x(middle(begun), w), H - B); }
        on = false;
        continue;
      }
      on ? g.lineTo(x(middle(i), w), y(v)) : g.moveTo(x(middle(i), w), y(v));
      if (!on) begun = i;
      on = true;
    }
    fill ? g.fill() : g.stroke();
  }
  function draw(k) {
    const chart = data.charts[k], axis = axes[k], canvas = boxes[k].lastChild, w = width(canvas), format = FORMAT[chart.unit];
    const scale = v => chart.log ? Math.log(Math.max(v, axis.low) / axis.low) / Math.log(axis.high / axis.low) : (v - axis.low) / (axis.high - axis.low);
    const y = v => T + (H - T - B) * (1 - Math.min(1, scale(v)));
    canvas.width = w * dpr; canvas.height = H * dpr; canvas.style.height = `${H}px`;
    const g = canvas.getContext('2d');
    g.scale(dpr, dpr); g.font = font;
    for (const band of data.bands) {
      const from = Math.max(L, x(band.from, w)), to = Math.min(w - R, Math.max(x(band.to, w), from + 2));
      g.fillStyle = band.colour; g.globalAlpha = .9; g.fillRect(from, T - 5, to - from, 3);
      if (to - from < (w - L - R) / 3) { g.globalAlpha = .1; g.fillRect(from, T, to - from, H - T - B); }  // a long one would paint the chart
      g.globalAlpha = 1;
    }
    g.lineWidth = 1; g.textBaseline = 'middle'; g.textAlign = 'right';
    for (const at of marks(axis.low, axis.high, chart.log)) {
      g.strokeStyle = grid; g.beginPath(); g.moveTo(L, y(at)); g.lineTo(w - R, y(at)); g.stroke();
      g.fillStyle = fg; g.globalAlpha = .65; g.fillText(format(at).replace(' /s', ''), L - 5, y(at)); g.globalAlpha = 1;
    }
    const every = TICKS.find(step => (t1 - t0) / step <= Math.max(2, (w - L - R) / 62)) || TICKS.at(-1), shift = offset(t0);
    g.textAlign = 'center'; g.fillStyle = fg; g.globalAlpha = .65;
    for (let t = Math.ceil((t0 + shift) / every) * every - shift; t <= t1; t += every) if (x(t, w) < w - 14) g.fillText((every < 24 * HOUR ? hour : day).format(t), x(t, w), H - B / 2);
    g.globalAlpha = 1;
    for (const limit of axis.limits) { g.strokeStyle = '#e1323c'; g.setLineDash([5, 4]); g.beginPath(); g.moveTo(L, y(limit.at)); g.lineTo(w - R, y(limit.at)); g.stroke(); g.setLineDash([]); }
    for (const line of chart.lines) {
      if (chart.bars) {
        g.fillStyle = line.colour;
        line.values.forEach((v, i) => v && g.fillRect(x(data.times[i], w), y(v), Math.max(1, x(data.times[i] + data.step, w) - x(data.times[i], w) - 1), H - B - y(v)));
        continue;
      }
      if (line.ghost) { g.strokeStyle = line.colour; g.globalAlpha = .6; g.setLineDash([2, 3]); path(g, line.ghost, w, y); g.setLineDash([]); g.globalAlpha = 1; }
      if (line.fill) { g.fillStyle = line.colour; g.globalAlpha = .18; path(g, line.values, w, y, true); g.globalAlpha = 1; }
      g.strokeStyle = g.fillStyle = line.colour; g.lineWidth = 1.6; path(g, line.values, w, y); g.lineWidth = 1;
    }
    const texts = data.bands.map(b => ({ ...b, left: Math.max(L, x(b.from, w)) + 2, hit: cursor !== null && holds(b, cursor) })).sort((p, q) => p.left - q.left);
    texts.forEach((b, i) => {  // the name of a band stands where it has room, and always under the cursor
      const size = g.measureText(b.text).width, room = cursor === null && size < (texts[i + 1]?.left ?? w - R) - b.left - 4;
      if (!room && !b.hit) return;
      const from = Math.max(L, Math.min(b.left, w - R - size)), down = T + 7 + 13 * (b.hit ? texts.filter(o => o.hit).indexOf(b) : 0);
      g.globalAlpha = .85; g.fillStyle = colour('--st-background-color', '#fff'); g.fillRect(from - 1, down - 6, size + 2, 12);
      g.globalAlpha = 1; g.textAlign = 'left'; g.fillStyle = b.colour; g.fillText(b.text, from, down); g.textAlign = 'center';
    });
    g.fillStyle = g.strokeStyle = fg;
    if (drag) { const [a, b] = [drag[0], drag[1]].map(i => x(data.times[i], w)).sort((p, q) => p - q); g.globalAlpha = .14; g.fillRect(a, T, Math.max(2, b - a), H - T - B); g.globalAlpha = 1; }
    if (cursor === null) return;
    g.globalAlpha = .6; g.beginPath(); g.moveTo(x(middle(cursor), w), T); g.lineTo(x(middle(cursor), w), H - B); g.stroke();
    const when = full.format(data.times[cursor]), half = g.measureText(when).width / 2 + 3, at = Math.min(w - R - half, Math.max(L + half, x(middle(cursor), w)));
    g.globalAlpha = 1; g.fillStyle = colour('--st-background-color', '#fff'); g.fillRect(at - half, H - B + 1, 2 * half, B - 1); g.fillStyle = fg; g.fillText(when, at, H - B / 2);
  }
  // How far the zone's clock is before UTC, so that marks stand at whole hours of the reader.
  function offset(t) {
    const p = Object.fromEntries(zoned({ year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric', hourCycle: 'h23' }).formatToParts(t).map(q => [q.type, +q.value]));
    return Date.UTC(p.year, p.month - 1, p.day, p.hour, p.minute) - Math.floor(t / 60e3) * 60e3;
  }
  const all = () => { H = wrap.clientWidth < 480 ? Math.round(data.height * .65) : data.height; wrap.cursor = cursor; data.charts.forEach((_, k) => { head(k); draw(k); }); };
  const move = to => { cursor = to === null ? null : Math.min(n - 1, Math.max(0, to)); all(); };
  function say() {
    const at = cursor, inside = data.bands.filter(b => at !== null && holds(b, at)).map(b => b.text);
    const values = chart => chart.lines.map(line => `${line.name} ${line.values[at] === null ? 'unknown' : FORMAT[chart.unit](line.values[at])}`).join(', ');
    live.textContent = at === null ? '' : [full.format(data.times[at]), ...data.charts.map(chart => `${chart.title}: ${values(chart)}`), ...inside].join('. ');
  }
  const send = () => { const [a, b] = drag.map(i => data.times[i]).sort((p, q) => p - q); drag = null; all(); if (b > a || data.clicks) setTriggerValue('brush', [a, b + data.step]); };
  const place = (event, canvas) => { const box = canvas.getBoundingClientRect(); return Math.min(n - 1, Math.max(0, Math.floor(((event.clientX - box.left - L) / (box.width - L - R) * (t1 - t0) + t0 - data.times[0]) / data.step))); };
  boxes.forEach(box => {
    const canvas = box.lastChild;
    canvas.onpointerdown = event => { canvas.setPointerCapture(event.pointerId); drag = [place(event, canvas), place(event, canvas)]; };
    canvas.onpointermove = event => { const at = place(event, canvas); if (drag) drag[1] = at; move(at); };
    canvas.onpointerup = () => drag && send();
    canvas.onpointercancel = () => { drag = null; all(); };
    canvas.onpointerleave = () => drag || move(null);
  });
  wrap.onkeydown = event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { move((cursor ?? (step > 0 ? -1 : n)) + step); if (drag) { drag[1] = cursor; all(); } }
    else if (event.key === ' ' && cursor !== null) drag ? send() : drag = [cursor, cursor];
    else if (event.key === 'Escape') { drag = null; move(null); }
    else return;
    event.preventDefault(); event.stopPropagation(); say();
  };
  const seen = new ResizeObserver(all);
  seen.observe(wrap);
  all();
  return () => seen.disconnect();
}
