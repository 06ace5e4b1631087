// Plays a film that was placed beforehand (film.py): boxes travel, appear and grow along one clock.
const LINE = 19; // pixels between the lines of a title
const OUTLINE = 1.5; // pixels of the line around a tile that was read or is in flight
const LETTER = 12; // pixels of a text above its baseline
const ALIGNED = { left: "start", center: "middle", right: "end" };
const [FAINTEST, STRONGEST] = [3, 5]; // contrast on a dark page: of the faintest bar, and of one without opacity

const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
// The luminance of a colour, #rrggbb, as the contrast ratio of WCAG 2.1 takes it.
const luminance = (colour) => parts(colour)
  .map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, place) => sum + [0.2126, 0.7152, 0.0722][place] * part, 0.05);
const mixed = (one, other, share) => {
  const to = parts(other);
  return `#${parts(one).map((part, place) => Math.round(part + (to[place] - part) * share).toString(16).padStart(2, "0")).join("")}`;
};
// The least that must be mixed into a colour to stand out so much from a dark page.
const reaching = (wanted, page, one, other) => {
  const shares = Array.from({ length: 101 }, (_, percent) => percent / 100);
  return mixed(one, other, shares.find((share) => luminance(mixed(one, other, share)) >= wanted * luminance(page)) ?? 1);
};
// On a light page a colour is what it is, and opacity makes it lighter. On a dark one opacity would make it vanish: the
// faintest has FAINTEST all the same, and what is too dark at full strength has as much of the text's colour as it needs.
const tinted = (colour, page, ink) => {
  const known = [page, ink].every((each) => /^#[0-9a-f]{6}$/.test(each));
  if (!known || luminance(page) > luminance(ink)) return { strong: colour };
  const strong = reaching(STRONGEST, page, colour.toLowerCase(), ink);
  return { strong, faint: reaching(FAINTEST, page, page, strong) };
};

// The scene for a narrow page: objects right of `split` move below the others, and no gap is high.
function stacked(scene, { split, size, title, upper, lower }) {
  const shift = (steps, y) => (steps.findLast(([from]) => from <= y + 0.05) ?? steps[0])[1];
  const placed = (x, y) => (x < split ? [x, y + shift(upper, y)] : [x - split, y + shift(lower, y)]);
  return {
    ...scene,
    size,
    title,
    movers: scene.movers.map(([x0, y0, x1, y1, ...others]) => [...placed(x0, y0), ...placed(x1, y1), ...others]),
    bars: scene.bars.map(([x, y, ...others]) => [...placed(x, y), ...others]),
    boxes: scene.boxes.map(([x, y, w, h]) => {
      const [left, top] = placed(x, y);
      return [left, top, w, placed(x, y + h)[1] - top];
    }),
    notes: scene.notes.map(([text, x, y, ...others]) => [text, ...lettered(placed, x, y), ...others]),
    counters: scene.counters.map(([name, text, x, y, ...others]) => [name, text, ...lettered(placed, x, y), ...others]),
  };
}

// A text's place is its baseline, and it moves with its top.
function lettered(placed, x, y) {
  const [left, top] = placed(x, y - LETTER);
  return [left, top + LETTER];
}

function render({ model, el }) {
  const { choice, scenes, narrow: given = [], rests = 0 } = model.get("data");
  const narrow = given.map((each, number) => (each.split === undefined ? each : stacked(scenes[number][1], each)));
  const make = (parent, tag, attributes = {}, text) => {
    const node = parent.appendChild(document.createElement(tag));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  el.classList.add("fusion-explorer", "fusion-film");
  if (narrow.length) el.classList.add("fusion-stacks"); // it needs no room to its side
  el.setAttribute("data-lm-suppress-shortcuts", "true"); // arrows and space are the widget's
  const controls = make(el, "div", { class: "fusion-film-controls", role: "group", "aria-label": "film" });
  const player = make(controls, "button", { type: "button", "aria-label": "Play" }, "Play ▶");
  const slider = make(controls, "input", { type: "range", min: 0, max: 100, value: 0, "aria-label": "time" });
  const clock = make(controls, "span", { class: "clock" });
  if (scenes.length > 1) {
    const select = make(make(controls, "label", {}, `${choice} `), "select", { "aria-label": choice });
    scenes.forEach(([name], number) => make(select, "option", { value: number }, name));
    select.addEventListener("change", () => (pause(), choose(Number(select.value))));
  }
  const chart = make(el, "div", { class: "fusion-film-chart", role: "img" });
  const status = make(el, "div", { role: "status", "aria-live": "polite" });
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let scene, context, canvas, moving, texts, timed, chosen, time = 0, playing = null, untouched = true;
  let tints = new Map(), themed = "";
  const tint = (colour) => {
    if (!tints.has(colour)) tints.set(colour, tinted(colour, ...themed.split(" ")));
    return tints.get(colour);
  };
  const lookAtTheme = () => {
    const { outlineColor, color } = getComputedStyle(canvas);
    const now = [outlineColor, color].map((each) => {
      context.fillStyle = each; // gives #rrggbb back, unless it is transparent
      return context.fillStyle.replaceAll(" ", "");
    }).join(" ");
    if (now !== themed) [themed, tints] = [now, new Map()];
  };

  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const counted = ([, text, , , value, start, end, digits, whole]) => {
    const part = Math.min(1, Math.max(0, (time - start) / (end - start)));
    const number = whole ? Math.floor(value * part + 1e-6) : value * part;
    return text.replace("{}", number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  };
  const digits = (value) => {
    if (value === 0) return "0";
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: places });
  };
  const heard = (text) => {
    const span = document.createElement("span");
    span.className = "fusion-heard";
    span.textContent = text;
    return span;
  };
  const clocked = () => {
    if (scene.moments?.length) return scene.moments.findLast(([start]) => start <= time)[1];
    const now = time * scene.scale;
    if (!scene.counts) return `${digits(now)} ${scene.unit}`;
    const count = Math.floor(now + 1e-6);
    return `${count.toLocaleString("en")} ${count === 1 ? scene.unit.replace(/s$/, "") : scene.unit}`;
  };
  const paint = () => {
    const [width, height] = scene.size;
    const scale = (chart.clientWidth / width) * (devicePixelRatio || 1);
    const wanted = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) [canvas.width, canvas.height] = wanted;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    lookAtTheme();
    const shown = scene.bars.filter(([, , , , start]) => time >= start).map(([x, y, w, h, start, end, colour, opacity, read]) => ({
      x, y, h, w: w * (end > start ? Math.min(1, (time - start) / (end - start)) : 1), opacity, ...tint(colour),
      read: read !== null && time > read,
    }));
    context.lineWidth = OUTLINE;
    for (const { x, y, w, h, opacity, faint, read } of shown) {
      if (!faint || opacity === 1 || read) continue;
      context.fillStyle = faint;
      context.fillRect(x, y, w, h);
    }
    for (const { x, y, w, h, opacity, strong, read } of shown) {
      context.globalAlpha = opacity;
      context.fillStyle = context.strokeStyle = strong;
      if (read) context.strokeRect(x + OUTLINE / 2, y + OUTLINE / 2, w - OUTLINE, h - OUTLINE);
      else context.fillRect(x, y, w, h);
    }
    context.globalAlpha = 1;
    context.strokeStyle = themed.split(" ")[1]; // the text's colour
    for (const [x0, y0, x1, y1, w, h, start, end, colour, edged] of scene.movers) {
      if (time <= start || time >= end) continue;
      const part = (time - start) / (end - start);
      const place = [x0 + (x1 - x0) * part, y0 + (y1 - y0) * part, w, h];
      context.fillStyle = tint(colour).strong;
      context.fillRect(...place);
      if (edged) context.strokeRect(...place);
    }
    for (const [node, start, end] of timed) {
      node.style.display = (start === null || time >= start) && (end === null || time < end) ? "" : "none";
    }
    const numbers = scene.counters.map(counted);
    numbers.forEach((text, place) => (texts[place].textContent = text));
    clock.textContent = clocked();
    slider.value = (100 * time) / scene.seconds;
    const told = scene.told.filter(([start]) => start <= time).at(-1)?.[1] ?? "";
    if (playing) { // no voice can keep up
      if (status.textContent !== told) status.textContent = told;
    } else {
      // What the picture shows is there for those who hear it.
      const now = `${clock.textContent}: `;
      const counts = numbers.map((number, place) => `${scene.counters[place][0]} ${number}`).join(", ");
      status.replaceChildren(heard(now), told, heard(counts && ` ${counts}.`));
      slider.setAttribute("aria-valuetext", clock.textContent);
      chart.setAttribute("aria-label", `${scene.title.replaceAll("\n", " ")}. ${status.textContent}`);
    }
    moving.replaceChildren(document.createElementNS("http://www.w3.org/2000/svg", "g"));
  };
  const choose = (number) => {
    chosen = number;
    scene = (chart.clientWidth && chart.clientWidth < NARROW && narrow[number]) || scenes[number][1];
    chart.classList.toggle("fusion-large", scene === narrow[number]);
    const [width, height] = scene.size;
    chart.style.setProperty("--grown", Math.max(1, width / chart.clientWidth)); // letters of a film drawn smaller
    chart.innerHTML = `<svg viewBox="0 0 ${width} ${height}" overflow="visible" aria-hidden="true">
      ${scene.title.split("\n").map((line, number) => `<text class="title" x="0" y="${14 + LINE * number}">${escaped(line)}</text>`).join("")}
      ${scene.boxes.map(([x, y, w, h]) => `<rect x="${x}" y="${y}" width="${w}" height="${h}"/>`).join("")}
      ${scene.notes.map(([text, x, y, align, bold]) => `<text class="note" x="${x}" y="${y}" text-anchor="${ALIGNED[align]}"${bold ? ' font-weight="bold"' : ""}>${escaped(text)}</text>`).join("")}
      ${scene.counters.map(([, , x, y]) => `<text class="counter" x="${x}" y="${y}"></text>`).join("")}
      <g class="fusion-moving"></g></svg><canvas aria-hidden="true"></canvas>`;
    const notes = [...chart.querySelectorAll(".note")];
    timed = scene.notes.map(([, , , , , start, end], place) => [notes[place], start, end])
      .filter(([, start, end]) => start !== null || end !== null);
    if (scene === narrow[number]) fitTexts(width);
    canvas = chart.querySelector("canvas");
    context = canvas.getContext("2d");
    moving = chart.querySelector(".fusion-moving");
    texts = [...chart.querySelectorAll(".counter")];
    time = untouched ? rests * scene.seconds : Math.min(time, scene.seconds);
    paint();
  };
  // A line that larger letters make too long has smaller ones.
  const fitTexts = (width) => {
    const texts = [...chart.querySelectorAll("text:not(.title, .counter)")];
    const boxes = texts.map((text) => text.getBBox());
    boxes.forEach(({ x, width: long }, place) => {
      const over = Math.max(-x, x + long - width - 4);
      const size = parseFloat(getComputedStyle(texts[place]).fontSize);
      if (over > 0) texts[place].style.fontSize = `${(size * (long - over)) / long}px`;
    });
  };
  const seek = (wanted) => {
    untouched = false;
    time = Math.max(0, Math.min(scene.seconds, wanted));
    paint();
  };
  const pause = () => {
    if (playing) cancelAnimationFrame(playing);
    playing = null;
    player.textContent = "Play ▶";
    player.setAttribute("aria-label", "Play");
  };
  const play = () => {
    if (untouched || time >= scene.seconds) time = 0;
    untouched = false;
    player.textContent = "Pause ||";
    player.setAttribute("aria-label", "Pause");
    let last = null, pending = 0;
    const tick = (now) => {
      if (!el.isConnected) return pause();
      pending += last === null ? 0 : (now - last) / 1000;
      last = now;
      // Where motion is unwanted, the film goes on picture by picture, two a second.
      if (!calm.matches || pending >= 0.5) {
        time = Math.min(scene.seconds, time + (pending * scene.seconds) / scene.plays);
        pending = 0;
        if (time >= scene.seconds) pause();
        paint();
      }
      if (time < scene.seconds) playing = requestAnimationFrame(tick);
    };
    playing = requestAnimationFrame(tick);
  };
  player.addEventListener("click", () => (playing ? (pause(), paint()) : play()));
  slider.addEventListener("input", () => {
    const wanted = (Number(slider.value) / 100) * scene.seconds;
    pause();
    seek(wanted);
  });
  el.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) event.stopPropagation(); // else JupyterLab takes them from slider and list
    if (event.key !== " " || event.target === player || event.target.tagName === "SELECT") return;
    event.preventDefault();
    player.click();
  });
  el.addEventListener("click", (event) => {
    if (!event.target.closest("button, input, select")) slider.focus({ preventScroll: true });
  });
  chart.addEventListener("transitionend", () => paint()); // the page has become dark, or light
  choose(0);
  const resized = new ResizeObserver(() => {
    const fits = (chart.clientWidth < NARROW && narrow[chosen]) || scenes[chosen][1];
    if (fits === scene) paint();
    else choose(chosen);
  });
  resized.observe(chart);
  return () => {
    pause();
    resized.disconnect();
  };
}
export default { render };
