// The occupancy of a block on an SM. `sm` holds what each resource allows, as the kernel computed it; here only the
// least of these is taken, and drawn.
const RESOURCES = ["threads", "registers", "shared memory"];
const PANEL_OF = { warps: "threads", registers: "registers", "shared memory": "shared memory" };

const allowedOn = (sm, { threads, registers, size }) => ({
  warps: Math.floor(sm.warps / Math.ceil(threads / 32)),
  registers: sm.by_registers[Math.ceil(threads / 32) - 1][registers],
  "shared memory": sm.by_shared_memory[Math.ceil((size + sm.reserved) / sm.unit)],
  blocks: sm.blocks,
});
const warpsOn = (sm, block) => Math.min(...Object.values(allowedOn(sm, block))) * Math.ceil(block.threads / 32);

// The block that one more of fits, nearest to this one: fewer threads first, then fewer registers, then less memory.
const oneMore = (sm, block, wanted) => {
  let { threads, registers, size } = block;
  if (allowedOn(sm, block).warps < wanted) threads = 32 * Math.floor(sm.warps / wanted);
  while (allowedOn(sm, { threads, registers, size }).registers < wanted) registers -= 1;
  let units = Math.ceil((size + sm.reserved) / sm.unit);
  if (sm.by_shared_memory[units] < wanted) {
    while (sm.by_shared_memory[units] < wanted) units -= 1;
    size = units * sm.unit - sm.reserved;
  }
  return { threads, registers, size };
};

const bytes = (size) => (size % 128 ? `${size} B` : `${size / 1024} KB`);
const advice = (sm, block, more) => {
  const threads = block.threads - more.threads;
  const registers = block.registers - more.registers;
  const size = block.size - more.size;
  const fewer = [];
  if (threads) fewer.push(`${threads} fewer thread${threads > 1 ? "s" : ""} per block`);
  if (registers) fewer.push(`${registers} fewer register${registers > 1 ? "s" : ""} per thread`);
  if (size) fewer.push(`${bytes(size)} less shared memory`);
  return `to fit one more block, use ${fewer.join(" and ")}`;
};

const panelSvg = (sm, resource, block, limiting, more) => {
  const { left, right, top, bottom, largest, most } = sm.panels[resource];
  const key = resource === "shared memory" ? "size" : resource;
  const label = (value) => (key === "size" ? bytes(value) : `${value}`);
  const x = (value) => (left + ((right - left) * value) / largest).toFixed(1);
  const y = (warps) => (bottom - ((bottom - top) * warps) / most).toFixed(1);
  const warpsAt = (value) => warpsOn(sm, { ...block, [key]: value });
  const limits = limiting.includes(resource);
  const mark = (value, fill) =>
    `<rect x="-3.5" y="-3.5" width="7" height="7" fill="${fill}" stroke="currentColor" data-mark="${y(warpsAt(value))}"` +
    ` transform="translate(${x(value)} ${y(warpsAt(value))}) rotate(45)"/>`;
  const own = block[key];
  const others = RESOURCES.map((name) => (name === "shared memory" ? "size" : name)).filter((name) => name !== key);
  const alone = more && more[key] !== own && others.every((name) => more[name] === block[name]);

  let values = sm.values[resource].filter((value) => key !== "size" || value <= sm.most);
  if (alone) values = [...values, more[key]].sort((a, b) => a - b);
  // What a value allows, every lower value down to the one before it allows too, or more.
  let path = "";
  let last = null;
  values.forEach((value, index) => {
    const warps = warpsAt(value);
    if (last === null) path = `M${x(value)} ${y(warps)}`;
    else if (warps !== last) path += `H${x(values[index - 1])}V${y(warps)}`;
    last = warps;
  });
  path += `H${x(values.at(-1))}`;

  const text = (value, dy, weight) => `<text x="${left}" y="${top - dy}" font-weight="${weight}">${value}</text>`;
  return (
    `<path d="${path}" fill="none" stroke="${limits ? sm.limiting : sm.grey}" stroke-width="${limits ? 2.4 : 1.2}" data-sweep="${resource}"/>` +
    `<path d="M${x(own)} ${top}V${bottom}" stroke="${sm.grey}" stroke-dasharray="4 2"/>` +
    (alone ? mark(more[key], "none") + text(`${label(more[key])}: one more block`, sm.freeing_line, "normal") : "") +
    mark(own, limits ? sm.limiting : sm.grey) +
    text(label(own) + (limits ? " limits" : ""), sm.own_line, limits ? "bold" : "normal")
  );
};

// The SM: a bar for each resource, which its blocks fill from the left. Where the next would not fit, it is dashed. On a
// narrow page its name and number stand above it.
const smSvg = (sm, block, blocks, limiting, narrow) => {
  const { top, height, step, left: indent, right: room, colours } = narrow ? sm.sm.narrow : sm.sm;
  const start = narrow ? 0 : sm.panels.threads.left + indent;
  const width = narrow ? sm.sm.narrow.width : sm.panels["shared memory"].right - room - start;
  const warps = Math.ceil(block.threads / 32);
  const ofWarp = Math.ceil((block.registers * 32) / sm.register_unit) * sm.register_unit;
  const size = Math.ceil((block.size + sm.reserved) / sm.unit) * sm.unit;
  const digits = (number) => number.toLocaleString("en");
  const kilobytes = (number) => `${Number((number / 1024).toPrecision(6))}`;
  const bars = [
    ["threads", "warps", warps, sm.warps, digits],
    ["registers", "registers", warps * ofWarp, sm.register_file, digits],
    ["shared memory", "shared memory", size, sm.shared_memory, kilobytes, " KB"],
  ];
  return bars.map(([resource, name, one, total, written, unit = ""], number) => {
    const y = top + step * number;
    const wide = (width * one) / total;
    const box = (x, w, attributes) =>
      `<rect x="${x.toFixed(1)}" y="${y}" width="${w.toFixed(1)}" height="${height}" ${attributes}/>`;
    const filled = Array.from({ length: blocks }, (_, at) =>
      box(start + wide * at, wide, `fill="${colours[at % 2]}" stroke="${sm.grey}" stroke-width="0.5"`)).join("");
    const left = width - wide * blocks - 4;
    const rest = one * (blocks + 1) > total && left > 0
      ? `<rect x="${(start + wide * blocks + 2).toFixed(1)}" y="${y + 2}" width="${left.toFixed(1)}" height="${height - 4}"` +
        ` fill="none" stroke="${sm.wrong}" stroke-dasharray="4 2"/>` : "";
    const weight = limiting.includes(resource) ? "bold" : "normal";
    const line = narrow ? y - 4 : y + height / 2 + 3;
    const text = (x, said, anchor) => `<text x="${x}" y="${line}" text-anchor="${anchor}" font-weight="${weight}">${said}</text>`;
    return (
      text(narrow ? 0 : (start - 6).toFixed(1), name, narrow ? "start" : "end") +
      text(narrow ? width : (start + width + 6).toFixed(1), `${written(one * blocks)} of ${written(total)}${unit}`, narrow ? "end" : "start") +
      `<g data-bar="${resource}">${filled}</g>${box(start, width, `fill="none" stroke="${sm.grey}"`)}${rest}`
    );
  }).join("");
};

const tableHtml = (allowed) => {
  const names = Object.keys(allowed);
  const cell = (count) => `<td>${count >= 65536 ? "no limit" : count}`;
  return (
    `<table><tr><th scope=col>resource<th scope=col>${names.join("<th scope=col>")}` +
    `<tr><th scope=row>blocks it allows${names.map((name) => cell(allowed[name])).join("")}</table>`
  );
};

const frameOf = (sm, [first, second, third], narrow) => {
  const block = {
    threads: sm.values.threads[first],
    registers: sm.values.registers[second],
    size: sm.values["shared memory"][third],
  };
  if (block.size > sm.most)
    return {
      svg: "",
      text:
        `${block.size} B of shared memory is ${block.size - sm.most} B more than a block can have on compute ` +
        `capability ${sm.capability}: at most ${sm.most} B`,
      table: "",
    };
  const allowed = allowedOn(sm, block);
  const blocks = Math.min(...Object.values(allowed));
  const warps = blocks * Math.ceil(block.threads / 32);
  const limiters = Object.keys(allowed).filter((name) => allowed[name] === blocks);
  const more = blocks < sm.blocks && warps < sm.warps ? oneMore(sm, block, blocks + 1) : null;
  const limited = `limited by ${limiters.join(" and ")}`;
  const title = `${warps} of ${sm.warps} warps of an SM are active, ${limited}`;
  const limiting = limiters.map((name) => PANEL_OF[name]);
  return {
    svg:
      sm.opening +
      `<text class="fusion-title" x="${sm.panels.threads.left}" y="${sm.title_y}" font-size="${STYLE.titleSize}" font-weight="bold">${title}</text>` +
      smSvg(sm, block, blocks, limiting, narrow) +
      RESOURCES.map((resource) => panelSvg(sm, resource, block, limiting, more)).join("") +
      "</svg>",
    text:
      `${sm.name}, ${block.threads} threads, ${block.registers} registers, ${bytes(block.size)} of shared memory: ` +
      `${blocks} block${blocks === 1 ? "" : "s"}, ${warps} of ${sm.warps} warps (${sm.shares[warps]}), ${limited}: ` +
      (more ? advice(sm, block, more) : `an SM holds no more than ${blocks < sm.blocks ? `${sm.warps} warps` : `${sm.blocks} blocks`}`) +
      ".",
    table: tableHtml(allowed),
  };
};
