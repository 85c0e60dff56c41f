// Tracks over one axis of time on a canvas: the wheel zooms, a drag pans, one cursor goes through all of them.
// A click on a bar that names a request sends it. Times are seconds from the origin.
const LEFT = 92, RIGHT = 12, AXIS = 34, GAP = 8;
const STEPS = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600];

export default function ({ data, parentElement, setTriggerValue }) {
  const wrap = parentElement.querySelector(".wrap"), canvas = wrap.querySelector("canvas");
  const tip = wrap.querySelector(".tip"), table = wrap.querySelector("table");
  const style = name => getComputedStyle(wrap).getPropertyValue(name).trim();
  const full = [data.from_s, data.to_s], least = Math.max((full[1] - full[0]) / 20000, 1e-5);
  // A refresh draws anew, and keeps what the reader looks at.
  const kept = wrap.trail && wrap.trail.id === data.id ? wrap.trail.view : null;
  const state = wrap.trail = { id: data.id, view: kept || [...full] };
  let width = 0, cursor = null, drag = null, over = null, frame = 0, stale = true;
  const layer = document.createElement("canvas");
  const tops = [];
  let height = AXIS;
  for (const track of data.tracks) {
    tops.push(height);
    height += track.height + GAP;
  }
  canvas.setAttribute("aria-label", data.label);

  const px = t => LEFT + (t - state.view[0]) / (state.view[1] - state.view[0]) * (width - LEFT - RIGHT);
  const at = x => state.view[0] + (x - LEFT) / (width - LEFT - RIGHT) * (state.view[1] - state.view[0]);
  const count = n => Math.round(n).toLocaleString("en-GB").replaceAll(",", "\u202f");

  function seconds(s) {
    const size = Math.abs(s);
    if (size >= 120) return `${+(s / 60).toPrecision(3)} min`;
    if (size >= 1 || s === 0) return `${+s.toPrecision(4)} s`;
    return size >= 1e-3 ? `${+(s * 1e3).toPrecision(3)} ms` : `${+(s * 1e6).toPrecision(3)} µs`;
  }
  const format = more => new Intl.DateTimeFormat("en-GB", {
    timeZone: data.zone, hour12: false, hour: "2-digit", minute: "2-digit", second: "2-digit", ...more,
  });
  const clock = format({ fractionalSecondDigits: 3 }), whole = format({});

  // The first place of sorted values that is not below `value`.
  function place(values, value) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The cursor alone moves most often: the tracks are painted on a layer, and again only when they change.
  function draw() {
    frame = 0;
    const ratio = window.devicePixelRatio || 1, g = canvas.getContext("2d");
    if (stale || width !== wrap.clientWidth) {
      width = wrap.clientWidth, stale = false;
      canvas.style.width = `${width}px`, canvas.style.height = `${height}px`;
      canvas.width = layer.width = width * ratio, canvas.height = layer.height = height * ratio;
      paint(layer.getContext("2d"), ratio);
    }
    g.setTransform(1, 0, 0, 1, 0, 0), g.clearRect(0, 0, canvas.width, canvas.height), g.drawImage(layer, 0, 0);
    if (cursor === null) return;
    g.scale(ratio, ratio), g.strokeStyle = style("--st-text-color") || "#222", g.globalAlpha = 0.6, g.lineWidth = 1;
    g.beginPath(), g.moveTo(px(cursor), AXIS - 6), g.lineTo(px(cursor), height - GAP), g.stroke(), g.globalAlpha = 1;
  }

  function paint(g, ratio) {
    g.scale(ratio, ratio);
    g.font = `11px ${style("--st-font") || "sans-serif"}`, g.textBaseline = "middle";
    const ink = style("--st-text-color") || "#222", paper = style("--st-background-color") || "#fff";
    axis(g, ink);
    data.tracks.forEach((track, i) => {
      g.fillStyle = ink, g.textAlign = "left";
      g.globalAlpha = 0.75, g.fillText(track.name, 0, tops[i] + Math.min(track.height / 2, 9), LEFT - 8), g.globalAlpha = 1;
      if (track.kind === "waits") {
        g.textAlign = "right", g.globalAlpha = 0.75;
        for (let at = track.low; at <= track.high * 1.001; at *= 10) g.fillText(seconds(+at.toPrecision(1)), LEFT - 6, up(track, tops[i], at));
        g.globalAlpha = 1;
      }
      g.save();
      g.beginPath(), g.rect(LEFT, tops[i], width - LEFT - RIGHT, track.height), g.clip();
      g.globalAlpha = 0.07, g.fillStyle = ink, g.fillRect(LEFT, tops[i], width - LEFT - RIGHT, track.height), g.globalAlpha = 1;
      drawn[track.kind](g, track, tops[i], ink, paper);
      g.restore();
    });
    let lastLabel = -1e9;
    for (const mark of data.marks) {
      const x = px(mark.at);
      if (x < LEFT - 1 || x > width - RIGHT + 1) continue;
      const under = mark.track === undefined ? height - GAP : tops[mark.track] + data.tracks[mark.track].height;
      g.strokeStyle = g.fillStyle = mark.colour, g.lineWidth = mark.dashed ? 1 : 2, g.setLineDash(mark.dashed ? [3, 3] : []);
      g.beginPath(), g.moveTo(x, AXIS - 5), g.lineTo(x, under), g.stroke(), g.setLineDash([]);
      const long = g.measureText(mark.label).width, right = x + long > width - 4;
      if (right ? x - long < lastLabel + 8 : x < lastLabel + 8) continue;
      lastLabel = right ? x : x + long;
      g.textAlign = right ? "right" : "left";
      g.fillText(mark.label, x + (right ? 3 : -3), 23);
    }
  }

  function axis(g, ink) {
    const wanted = (state.view[1] - state.view[0]) / Math.max(2, (width - LEFT) / 90);
    const step = STEPS.find(one => one >= wanted) || Math.ceil(wanted / 600) * 600;
    g.fillStyle = ink, g.textAlign = "center", g.lineWidth = 1;
    const shift = data.origin_ms === null ? 0 : data.origin_ms / 1000 % step;  // ticks are at whole seconds of the clock
    for (let n = Math.ceil((state.view[0] + shift) / step); n * step - shift <= state.view[1]; n++) {
      const t = n * step - shift, x = px(t);
      g.globalAlpha = 0.7, g.fillText(label(t, step >= 1), Math.min(x, width - 24), 8);
      g.globalAlpha = 0.12, g.fillRect(x, AXIS - 5, 1, height - AXIS - 3), g.globalAlpha = 1;
    }
  }
  function label(t, inSeconds) {
    if (data.origin_ms === null) return seconds(+t.toPrecision(9));
    return (inSeconds ? whole : clock).format(Math.round(data.origin_ms + t * 1000));
  }

  // The height of a wait in its track, by its logarithm; a wait of 0 is at the bottom.
  function up(track, top, wait) {
    const share = Math.log(Math.max(wait, track.low) / track.low) / Math.log(track.high / track.low);
    return top + track.height - 5 - Math.min(1, share) * (track.height - 12);
  }

  const drawn = {
    // [row, start, length, colour, text, request]; rows below each other.
    bars(g, track, top, ink, paper) {
      const tall = track.height / track.rows, pad = tall > 6 ? 1 : 0;
      for (const [row, start, length, colour, text, request] of track.bars) {
        const x0 = px(start), x1 = px(start + length);
        if (x1 < LEFT || x0 > width) continue;
        const y = top + row * tall + pad, w = Math.max(1, x1 - x0), h = Math.max(1, tall - 2 * pad);
        g.fillStyle = data.colours[colour], g.fillRect(x0, y, w, h);
        if (over && request && over.request && over.request[0] === request[0]) {
          g.strokeStyle = ink, g.lineWidth = 1.5, g.strokeRect(x0, y, w, h);
        }
        const from = Math.max(x0, LEFT) + 4, room = Math.min(x1, width - RIGHT) - from - 2;
        if (tall >= 14 && room > 30 && g.measureText(text).width < room) {
          g.fillStyle = paper, g.textAlign = "left", g.fillText(text, from, y + h / 2);
        }
      }
    },
    // A dot for each token: its end across, its wait upwards; shaded behind them: steps with prompts of others.
    waits(g, track, top, ink, paper) {
      g.fillStyle = "rgba(251, 113, 133, 0.16)";
      for (const [start, length] of track.shades) {
        const x = px(start);
        if (x < width && px(start + length) > LEFT) g.fillRect(x, top, Math.max(1, px(start + length) - x), track.height);
      }
      g.fillStyle = ink, g.globalAlpha = 0.14;
      for (let at = track.low; at <= track.high * 1.001; at *= 10) g.fillRect(LEFT, up(track, top, at), width - LEFT, 1);
      g.globalAlpha = 1;
      const n = track.ends.length, size = n > 2000 ? 2 : n > 500 ? 3 : 4;
      for (let i = place(track.ends, state.view[0]); i < n && track.ends[i] <= state.view[1]; i++) {
        const late = track.limit !== null && track.waits[i] > track.limit ? 3 : 0;
        g.fillStyle = data.colours[track.colours[i]];
        g.fillRect(px(track.ends[i]) - (size + late) / 2, up(track, top, track.waits[i]) - (size + late) / 2, size + late, size + late);
      }
      if (track.limit === null) return;
      const y = up(track, top, track.limit), text = `promised: no wait over ${seconds(track.limit)}`;
      g.strokeStyle = "#ef4444", g.setLineDash([5, 4]), g.beginPath();
      g.moveTo(LEFT, y), g.lineTo(width - RIGHT, y), g.stroke(), g.setLineDash([]);
      g.textAlign = "right", g.fillStyle = paper, g.globalAlpha = 0.8;
      g.fillRect(width - RIGHT - g.measureText(text).width - 6, y - 15, g.measureText(text).width + 4, 13);
      g.globalAlpha = 1, g.fillStyle = "#d92d2d", g.fillText(text, width - RIGHT - 4, y - 8);
    },
    // Columns on each other, one for each step. Where several fall on a pixel, the tallest is drawn.
    columns(g, track, top) {
      const most = Math.max(1, ...track.series[0].values.map((_, i) => track.series.reduce((sum, one) => sum + (one.values[i] || 0), 0)));
      const tallest = new Map();
      const n = track.starts.length;
      for (let i = Math.max(0, place(track.starts, state.view[0]) - 1); i < n && px(track.starts[i]) < width; i++) {
        const x = Math.round(px(track.starts[i])), total = track.series.reduce((sum, one) => sum + (one.values[i] || 0), 0);
        const known = tallest.get(x);
        if (!known || known.total < total) tallest.set(x, { i, total });
      }
      const scale = value => track.log ? Math.log1p(value) / Math.log1p(most) : value / most;
      for (const [x, { i }] of tallest) {
        const w = Math.max(1, px(track.starts[i] + track.lengths[i]) - x - 0.3);
        let sum = 0;
        for (const one of track.series) {
          const below = scale(sum), above = scale(sum += one.values[i] || 0);
          g.fillStyle = one.colour;
          g.fillRect(x, top + track.height * (1 - above), w, track.height * (above - below));
        }
      }
    },
    line(g, track, top) {
      g.strokeStyle = track.colour, g.lineWidth = 1.5, g.beginPath();
      let y = null;
      for (let i = Math.max(0, place(track.times, state.view[0]) - 1); i < track.times.length; i++) {
        const x = px(track.times[i]), next = top + track.height * (1 - track.values[i] * 0.94) - 1;
        if (y === null) g.moveTo(x, next);
        else g.lineTo(x, y), g.lineTo(x, next);
        y = next;
        if (x > width) break;
      }
      g.stroke();
      for (const [time, own] of track.events) {
        g.fillStyle = own ? "#ef4444" : "#94a3b8", g.font = "12px sans-serif", g.textAlign = "center";
        g.fillText(own ? "✕" : "○", px(time), top + 7);
      }
    },
  };

  // What a track says of a time: a line of text, and the bar under the pointer.
  const said = {
    bars(track, t, row) {
      let found = null;
      for (const bar of track.bars) if (bar[0] === row && bar[1] <= t && t <= bar[1] + bar[2]) found = bar;
      return found && { text: `${found[4]} ${seconds(found[2])}`, request: found[5], bar: found };
    },
    waits(track, t) {
      const i = place(track.ends, t);
      if (i >= track.ends.length || track.ends[i] - track.waits[i] > t) return null;
      return { text: `token ${track.first + i}: waited ${seconds(track.waits[i])} (${data.names[track.colours[i]]})` };
    },
    columns(track, t) {
      const i = place(track.starts, t) - 1;
      if (i < 0 || t > track.starts[i] + track.lengths[i]) return null;
      const parts = track.series.map(one => one.values[i] === null ? null : `${count(one.values[i])} ${one.name}`);
      return { text: `step${track.steps[i] === null ? "" : ` ${track.steps[i]}`} ${seconds(track.lengths[i])}: ${parts.filter(Boolean).join(", ")}${track.more[i] || ""}` };
    },
    line(track, t) {
      const i = place(track.times, t) - 1;
      return i < 0 || t > track.times.at(-1) ? null : { text: `${track.name}: ${Math.round(track.values[i] * 100)} % used` };
    },
  };

  function look(x, y) {
    if (x < LEFT || x > width - RIGHT) return leave();
    const before = over;
    cursor = at(x), over = null;
    const lines = [label(+cursor.toPrecision(6))];
    data.tracks.forEach((track, i) => {
      const inside = y >= tops[i] && y <= tops[i] + track.height;
      if (track.kind === "bars" && track.rows > 1 && !inside) return;
      const row = track.rows > 1 ? Math.floor((y - tops[i]) / (track.height / track.rows)) : 0;
      const found = said[track.kind](track, cursor, row);
      if (!found) return;
      lines.push(found.text);
      if (inside) over = found;
    });
    canvas.style.cursor = over && over.request ? "pointer" : drag ? "grabbing" : "grab";
    tip.textContent = lines.join("\n") + (over && over.request ? "\nclick opens this request" : "");
    tip.style.display = "block";
    tip.style.left = `${Math.min(x + 14, width - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 14, height - tip.offsetHeight))}px`;
    soon(over?.request !== before?.request);
  }
  function leave() {
    const marked = over?.request;
    cursor = null, over = null, tip.style.display = "none";
    soon(!!marked);
  }
  function soon(changed = true) {
    stale ||= !!changed;
    if (!frame) frame = requestAnimationFrame(draw);
  }
  function move(from, to) {
    const length = Math.min(Math.max(to - from, least), full[1] - full[0]);
    const begin = Math.min(Math.max(from, full[0]), full[1] - length);
    state.view = [begin, begin + length];
    wrap.dataset.view = state.view.map(t => t.toPrecision(6)).join(" ");
    soon();
  }
  function zoom(by, around) {
    const [a, b] = state.view;
    move(around - (around - a) * by, around + (b - around) * by);
  }
  function pan(share) {
    const length = state.view[1] - state.view[0];
    move(state.view[0] + share * length, state.view[1] + share * length);
  }
  const pointer = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.onwheel = event => {
    event.preventDefault();
    const [x, y] = pointer(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 800);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), at(Math.max(x, LEFT)));
    look(x, y);
  };
  canvas.onpointerdown = event => {
    drag = { x: pointer(event)[0], view: [...state.view], moved: false };
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = event => {
    const [x, y] = pointer(event);
    if (drag) {
      const by = (drag.x - x) / (width - LEFT - RIGHT) * (drag.view[1] - drag.view[0]);
      drag.moved ||= Math.abs(x - drag.x) > 3;
      if (drag.moved) move(drag.view[0] + by, drag.view[1] + by);
    }
    look(x, y);
  };
  canvas.onpointerup = event => {
    const clicked = drag && !drag.moved;
    drag = null;
    look(...pointer(event));
    if (clicked && over && over.request) setTriggerValue("opened", over.request);
  };
  canvas.onpointercancel = () => { drag = null; };
  canvas.onpointerleave = () => { if (!drag) leave(); };
  canvas.ondblclick = () => move(...full);
  wrap.onkeydown = event => {
    const middle = (state.view[0] + state.view[1]) / 2;
    const keys = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle),
      "-": () => zoom(1.6, middle), 0: () => move(...full), Escape: () => move(...full),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault(), event.stopPropagation();
    keys[event.key]();
  };

  table.replaceChildren(...[["what", "begins", "lasts"], ...data.rows].map((cells, i) => {
    const row = document.createElement("tr");
    row.append(...cells.map(text => Object.assign(document.createElement(i ? "td" : "th"), { textContent: text })));
    return row;
  }));
  wrap.dataset.view = state.view.map(t => t.toPrecision(6)).join(" ");
  const watch = new ResizeObserver(() => soon());
  watch.observe(wrap);
  // The theme changes colours of texts, and nothing tells the component: a class or a style of a parent changes.
  const theme = new MutationObserver(() => soon());
  theme.observe(document.documentElement, { attributes: true, subtree: false });
  draw();
  return () => { watch.disconnect(), theme.disconnect(), cancelAnimationFrame(frame); };
}
