// What every page does: the theme's switch, the contents on a narrow screen, guesses, the search.
"use strict";
{
  const root = document.documentElement;
  const kept = {
    get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private browsing */ } },
  };

  // Theme
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => (theme.textContent = isDark() ? "Light page" : "Dark page");
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    kept.set("fusion-theme", root.dataset.theme);
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  // Contents
  const menu = document.getElementById("menu");
  const contents = document.getElementById("contents");
  const openMenu = (open) => {
    menu.setAttribute("aria-expanded", open);
    contents.classList.toggle("open", open);
    if (open) (contents.querySelector("[aria-current=page]") ?? contents.querySelector("a")).focus();
  };
  menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
  contents.addEventListener("click", (event) => event.target.closest("a") && openMenu(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || menu.getAttribute("aria-expanded") !== "true") return;
    openMenu(false);
    menu.focus();
  });
  const here = contents.querySelector("[aria-current=page]");
  if (here) contents.scrollTop = here.offsetTop - contents.clientHeight / 3;
  // The section that is being read: the last that begins in the upper quarter of the window.
  const links = [...contents.querySelectorAll("ul ul a")];
  const begun = (heading) => heading?.closest(".section") ?? heading; // to measure a heading, all of it would be laid out
  const headings = links.map((link) => begun(document.getElementById(link.hash.slice(1))));
  const mark = () => {
    const above = headings.findLastIndex((each) => each && each.getBoundingClientRect().top < innerHeight / 4);
    links.forEach((link, place) => {
      if (place === above) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    });
  };
  const passed = new IntersectionObserver(mark, { rootMargin: "0px 0px -75% 0px" });
  for (const each of headings) if (each) passed.observe(each);

  // What is wider than its place scrolls in it, from the keyboard too. It is measured when it is near, and laid out
  // anyway; until then it can have the focus, as it may be wide.
  const measured = new IntersectionObserver((entries) => {
    const near = entries.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target);
    const scrolls = near.map((node) => node.scrollWidth > node.clientWidth + 1);
    near.forEach((node, place) => {
      if (scrolls[place]) node.tabIndex = 0;
      else if (node !== document.activeElement) node.removeAttribute("tabindex");
    });
    document.body.dataset.measured = "yes";
  }, { rootMargin: "100% 0px" });
  const wide = () => {
    measured.disconnect();
    const nodes = [...document.querySelectorAll("main :is(pre, .output, .wide, .formula, .live)")];
    for (const node of nodes) {
      node.tabIndex = 0;
      measured.observe(node);
    }
    if (!nodes.length) document.body.dataset.measured = "yes";
  };
  addEventListener("resize", wide);
  addEventListener("load", wide);
  document.addEventListener("toggle", wide, true);

  // Guesses: an answer is hidden until the reader has guessed, or asks for it.
  const reveal = (answer) => {
    if (answer.matches("details")) answer.open = true;
    else answer.hidden = false;
  };
  // Something to find in it, or a link into it, opens it as well.
  const revealTarget = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const hidden = target && target.closest(".answers[hidden]");
    if (!hidden) return;
    reveal(hidden);
    target.scrollIntoView();
  };
  addEventListener("hashchange", revealTarget);
  document.addEventListener("beforematch", wide);
  const page = document.body.dataset.page;
  const guesses = JSON.parse(kept.get(`fusion-guesses-${page}`) ?? "{}");
  const number = (typed, unit) => {
    const text = typed.trim().replace(/[,  ]/g, "");
    const folded = (some) => some.toLowerCase().replace(/ /g, "").replace(/[\u00b5\u03bc]/g, "u"); // µs is also typed us
    const bare = unit && folded(text).endsWith(folded(unit)) ? text.slice(0, -unit.replace(/ /g, "").length) : text;
    return bare === "" ? NaN : Number(bare);
  };
  const beside = (said, found, unit) => {
    const right = number(found, unit);
    if (said === null) return `Found: ${found}.`;
    if (said === right || (right && Math.abs(said / right - 1) < 0.02)) return `Found: ${found}, as you said.`;
    if (!(said > 0 && right > 0)) return `Found: ${found}; you said ${said}.`;
    const ratio = Math.max(said, right) / Math.min(said, right);
    return `Found: ${found}; you said ${said}, too ${said > right ? "high" : "low"} by a factor of ${Number(ratio.toPrecision(3)).toLocaleString("en")}.`;
  };
  const seen = new Set();
  // How far off a guess was, in the table at a lesson's end; as helpers/figures/frame/predicted_vs_measured.py draws it.
  const strip = (said, right) => {
    if (!(said * right > 0)) return "";
    const ratio = said / right;
    const off = Math.max(ratio, 1 / ratio);
    const told = off <= 1.1 ? "right" : `too ${ratio > 1 ? "high" : "low"} by a factor of ${Number(off.toPrecision(3)).toLocaleString("en")}`;
    const x = 60 + 52 * (Math.log(Math.min(Math.max(ratio, 0.1), 10)) / Math.log(10));
    return (
      `<svg viewBox="0 0 120 16" width="120" height="16" role="img" aria-label="${told}">` +
      '<path d="M4 8H116M60 2V14" stroke="currentColor" stroke-opacity=".5"/>' +
      `<path d="M${x.toFixed(1)} 2l6 6-6 6-6-6z" fill="${off <= 1.1 ? "#0072b2" : "#d55e00"}" stroke="currentColor"/></svg>`
    );
  };
  for (const form of document.querySelectorAll(".fusion-guess[data-right]")) {
    const { told } = form.dataset;
    const right = Number(form.dataset.right);
    const rounded = Math.abs(right) >= 9999.5 ? Math.round(right) : Number(right.toPrecision(4));
    const shown = rounded.toLocaleString("en", { maximumFractionDigits: 12 });
    const [input, asking, status] = [form.querySelector("input"), form.querySelector("[type=button]"), form.querySelector("[role=status]")];
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const said = number(input.value, "");
      if (!Number.isFinite(said)) status.textContent = "Type a number first, or press “Show me”.";
      else if (Math.abs(said - right) <= 0.01 * Math.abs(right)) status.textContent = "Right.";
      else status.textContent = `Not ${input.value.trim()}: ${told}.`;
    });
    asking.addEventListener("click", () => (status.textContent = `${shown}: ${told}.`));
  }
  for (const form of document.querySelectorAll(".fusion-guess[data-number]")) {
    const { number: place, question, unit, found } = form.dataset;
    const [input, asking, status] = [form.querySelector("input"), form.querySelector("[type=button]"), form.querySelector("[role=status]")];
    const show = (said) => {
      status.textContent = found ? beside(said, found, unit) : "";
      asking.hidden = true;
      seen.add(place);
      for (const answer of document.querySelectorAll(`[data-answers~="${place}"]`)) {
        if (answer.dataset.answers.split(" ").every((each) => seen.has(each))) reveal(answer);
      }
      wide();
      // The table at a lesson's end.
      for (const row of document.querySelectorAll(".fusion-table tbody tr")) {
        if (said === null || row.cells[0].textContent !== question) continue;
        row.cells[1].textContent = said;
        if (row.cells[4]) row.cells[4].innerHTML = strip(said, number(found, unit));
      }
      guesses[question] = said;
      kept.set(`fusion-guesses-${page}`, JSON.stringify(guesses));
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const said = number(input.value, unit);
      if (Number.isFinite(said)) show(said);
      else status.textContent = input.value.trim() ? "Write it as a number, such as 12.5 or 3e6." : "Type a number first, or press “Show me”.";
    });
    asking.addEventListener("click", () => {
      show(null);
      input.focus({ preventScroll: true });
    });
    if (question in guesses) {
      input.value = guesses[question] ?? "";
      show(guesses[question]);
    }
  }
  revealTarget();
  document.getElementById("show-all")?.addEventListener("click", ({ target }) => {
    for (const answer of document.querySelectorAll(".answers[hidden], .answer")) reveal(answer);
    target.disabled = true;
    wide();
  });
  for (const row of document.querySelectorAll("[data-lesson]")) {
    const seen = Object.keys(JSON.parse(kept.get(`fusion-guesses-${row.dataset.lesson}`) ?? "{}")).length;
    if (seen) row.querySelector(".done").textContent = `${seen} of ${row.dataset.questions} questions seen`;
  }

  // Search: every word must be found; a title counts more than the text.
  const search = document.getElementById("search");
  const field = search.querySelector("input");
  const list = document.getElementById("found");
  let index = null;
  const load = () => {
    if (index) return index;
    index = new Promise((resolve) => {
      const script = document.createElement("script");
      script.src = `${document.body.dataset.root}assets/search.js`;
      script.addEventListener("load", () => resolve(window.fusionSearch.map((entry) => ({ entry, low: entry.slice(2).map((text) => text.toLowerCase()) }))));
      document.head.append(script);
    });
    return index;
  };
  const times = (text, word) => text.split(word).length - 1;
  // The part of a text that shows the words: the whole phrase if it occurs, or else the most of them together.
  const EXCERPT = 140;
  const excerptAt = (low, words, phrase) => {
    const whole = low.indexOf(phrase);
    if (whole >= 0) return whole;
    let best = [0, -1];
    for (const word of words) {
      for (let at = low.indexOf(word), tries = 0; at >= 0 && tries < 50; at = low.indexOf(word, at + 1), tries++) {
        const here = low.slice(at, at + EXCERPT - 50);
        const found = words.filter((each) => here.includes(each)).length;
        if (found > best[0]) best = [found, at];
      }
    }
    return best[1];
  };
  const excerpt = (text, words, phrase, title) => {
    const found = title.toLowerCase() === phrase ? 0 : excerptAt(text.toLowerCase(), words, phrase);
    // From one space to another: words stay whole.
    const at = found < 40 ? 0 : text.indexOf(" ", found - 40) + 1;
    const end = text.length > at + EXCERPT ? text.lastIndexOf(" ", at + EXCERPT) : text.length;
    const part = document.createElement("span");
    part.className = "small";
    const shown = `${at ? "… " : ""}${text.slice(at, Math.max(end, found + phrase.length))}${end < text.length ? " …" : ""}`;
    const marks = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
    shown.split(marks).forEach((piece, place) => {
      if (place % 2) part.appendChild(document.createElement("mark")).textContent = piece;
      else part.append(piece);
    });
    return part;
  };
  // A heading or a page that is just what was asked for comes first, and the glossary's entry before others.
  const exact = (phrase, [name, title, text], target) => {
    if (title === phrase) return target.endsWith("glossary.html") ? 1000 : 500;
    if (name === phrase || name.endsWith(` ${phrase}`)) return 300;
    if (asWords(title, phrase)) return 60;
    return text.includes(phrase) && phrase.includes(" ") ? 20 : 0;
  };
  const asWords = (title, phrase) => ` ${title.replace(/[^\p{L}\p{N}]+/gu, " ")} `.includes(` ${phrase} `);
  const find = async () => {
    const typed = field.value.toLowerCase().trim().replace(/\s+/g, " ");
    const singular = (word) => (word.length > 3 && word.endsWith("s") && !word.endsWith("ss") ? word.slice(0, -1) : word);
    const words = typed.split(" ").filter(Boolean).map(singular);
    const phrase = words.join(" ");
    const all = await load();
    list.hidden = !words.length;
    const scored = [];
    for (const { entry, low } of all) {
      const [name, title, text] = low;
      const points = words.map((word) => 8 * times(title, word) + 4 * times(name, word) + Math.min(4, times(text, word)));
      if (!words.length || Math.min(...points) === 0) continue;
      const first = Math.max(exact(phrase, low, entry[0]), exact(typed, low, entry[0]));
      scored.push([first + points.reduce((sum, each) => sum + each), entry]);
    }
    scored.sort((one, other) => other[0] - one[0]);
    list.replaceChildren(...scored.slice(0, 12).map(([, [target, anchor, name, title, text]]) => {
      const link = document.createElement("a");
      link.href = `${document.body.dataset.root}${target}${anchor ? `#${anchor}` : ""}`;
      link.appendChild(document.createElement("b")).textContent = title && !name.endsWith(title) ? `${name}: ${title}` : name;
      link.append(excerpt(text, words, phrase, title));
      return link;
    }));
    const told = list.appendChild(document.createElement("p"));
    told.className = "small";
    told.setAttribute("role", "status");
    const places = scored.length === 1 ? "1 place" : `${scored.length} places`;
    told.textContent = scored.length > 12 ? `12 of ${places}` : scored.length ? places : "Nothing found";
  };
  field.addEventListener("focus", load);
  field.addEventListener("input", find);
  search.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  search.addEventListener("keydown", (event) => {
    const places = [field, ...list.querySelectorAll("a")];
    const at = places.indexOf(document.activeElement);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      places.at((at + (event.key === "ArrowDown" ? 1 : -1)) % places.length).focus();
    } else if (event.key === "Escape") {
      list.hidden = true;
      field.focus();
    }
  });
  search.addEventListener("focusout", (event) => {
    if (!search.contains(event.relatedTarget)) list.hidden = true;
  });
  list.addEventListener("click", () => (list.hidden = true));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    field.focus();
  });
}
