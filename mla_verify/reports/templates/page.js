"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  document.documentElement.classList.add("js");

  // Filter and order

  const findings = all(".finding");
  const rows = all("#verdicts tbody tr");
  const kernels = all(".kernel");
  const verdictOf = new Map(rows.map((row) => [row.dataset.kernel, row.dataset.verdict]));
  const texts = new Map(); // read once, when somebody filters
  const textOf = (item) => {
    if (!texts.has(item)) texts.set(item, item.textContent.toLowerCase());
    return texts.get(item);
  };

  const filter = () => {
    const words = byId("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const clause = byId("clause").value;
    const verdict = byId("verdict").value;
    const said = (item) => words.every((word) => textOf(item).includes(word));
    const judged = (item) => !verdict || verdictOf.get(item.dataset.kernel) === verdict;
    const withFinding = new Set();
    let shown = 0;
    for (const finding of findings) {
      const visible = judged(finding) && (!clause || finding.dataset.clause === clause) && said(finding);
      finding.hidden = !visible;
      shown += visible;
      if (visible) withFinding.add(finding.dataset.kernel);
    }
    for (const item of [...rows, ...kernels]) {
      const wanted = withFinding.has(item.dataset.kernel) || (!clause && said(item));
      item.hidden = !(judged(item) && wanted);
    }
    const filtered = words.length || clause || verdict;
    byId("count").textContent = filtered ? `${shown} of ${findings.length} findings` : `${findings.length} findings`;
  };

  const order = () => {
    const key = {
      number: (finding) => Number(finding.id.slice(1)),
      clause: (finding) => finding.dataset.clause,
      elements: (finding) => -Number(finding.dataset.elements),
    }[byId("order").value];
    const sorted = [...findings].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      return a < b ? -1 : a > b ? 1 : Number(one.id.slice(1)) - Number(other.id.slice(1));
    });
    byId("findings")?.append(...sorted);
  };

  let waiting = 0;
  byId("words").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, findings.length > 1000 ? 150 : 0);
  });
  byId("clause").addEventListener("change", filter);
  byId("verdict").addEventListener("change", filter);
  byId("order").addEventListener("change", order);
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());

  // The table of verdicts

  const gravity = ["fail", "known", "not checked", "unavailable", "pass"];
  const rank = (cell) => {
    const text = cell.textContent.trim();
    if (cell.classList.contains("number")) return Number(text);
    return gravity.includes(text) && cell.tagName === "TD" ? gravity.indexOf(text) : text.toLowerCase();
  };
  for (const button of all("#verdicts thead button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const down = head.getAttribute("aria-sort") === "ascending";
      all("#verdicts thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const column = Number(button.dataset.column);
      const ranked = rows.map((row) => [rank(row.cells[column]), row]);
      ranked.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
      document.querySelector("#verdicts tbody").append(...ranked.map(([, row]) => row));
    });
  }

  // Maps

  const maps = new WeakMap(); // figure → its data, unfolded when it is first looked at
  const dataOf = (figure) => {
    if (!maps.has(figure)) {
      const data = JSON.parse(figure.querySelector("script").textContent);
      data.cells = new Int32Array(data.rows * data.columns);
      let at = 0;
      for (let run = 0; run < data.runs.length; run += 2) {
        data.cells.fill(data.runs[run], at, at + data.runs[run + 1]);
        at += data.runs[run + 1];
      }
      maps.set(figure, data);
    }
    return maps.get(figure);
  };

  const indexOf = (place, shape) => {
    const index = [];
    for (const size of [...shape].reverse()) {
      index.unshift(place % size);
      place = Math.floor(place / size);
    }
    return index.join(", ");
  };

  const placeText = (data, row, column) => {
    const [down, across] = data.step;
    const [y, x] = [row * down, column * across];
    if (data.kind === "memory") {
      const place = y * data.columns * across + x - data.begin;
      return `${place < 0 ? "−" : "+"}${Math.abs(place)} from the first element`;
    }
    const width = data.shape.length ? data.shape[data.shape.length - 1] : 1;
    const height = data.shape.slice(0, -1).reduce((product, size) => product * size, 1);
    const first = `[${indexOf(y * width + x, data.shape)}]`;
    if (down === 1 && across === 1) return first;
    const last = Math.min(y + down, height) * width - width + Math.min(x + across, width) - 1;
    return `${first} to [${indexOf(last, data.shape)}], the worst of them`;
  };

  const describe = (data, row, column) => {
    const parts = [data.words[data.cells[row * data.columns + column]]];
    if (data.kind === "elements" && data.step[0] === 1 && data.step[1] === 1) {
      const values = data.values[row * data.columns + column];
      if (values) {
        const [value, expected, error, bound] = values;
        parts.push(`value ${value}`);
        if (expected !== "") parts.push(`expected ${expected}`, `error ${error}`, `bound ${bound}`);
      }
    }
    return `${placeText(data, row, column)}: ${parts.join(", ")}`;
  };

  const look = (figure, row, column) => {
    const data = dataOf(figure);
    const image = figure.querySelector("img");
    const cursor = figure.querySelector(".cursor");
    data.at = [Math.max(0, Math.min(data.rows - 1, row)), Math.max(0, Math.min(data.columns - 1, column))];
    const [high, wide] = [image.clientHeight / data.rows, image.clientWidth / data.columns];
    Object.assign(cursor.style, {
      left: `${data.at[1] * wide}px`, top: `${data.at[0] * high}px`,
      width: `${Math.max(wide, 4)}px`, height: `${Math.max(high, 4)}px`,
    });
    cursor.hidden = false;
    figure.querySelector(".readout").textContent = describe(data, ...data.at);
  };

  document.addEventListener("pointermove", (event) => {
    const image = event.target.closest?.(".view img");
    if (!image) return;
    const figure = image.closest(".map");
    const data = dataOf(figure);
    const box = image.getBoundingClientRect();
    look(
      figure,
      Math.floor(((event.clientY - box.top) / box.height) * data.rows),
      Math.floor(((event.clientX - box.left) / box.width) * data.columns),
    );
  });

  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const onMap = (event, view) => {
    const figure = view.closest(".map");
    const data = dataOf(figure);
    const [row, column] = data.at ?? [0, 0];
    if (event.key in steps) look(figure, row + (data.at ? steps[event.key][0] : 0), column + (data.at ? steps[event.key][1] : 0));
    else if (event.key === "Home") look(figure, row, 0);
    else if (event.key === "End") look(figure, row, data.columns - 1);
    else return;
    event.preventDefault();
  };

  // Copying, keys, links

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea"); // where the clipboard is closed to pages that are files
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  // A line to type gets its button when it is first looked at: with thousands of findings, most never are.
  document.addEventListener("toggle", (event) => {
    const finding = event.target.closest(".finding");
    for (const line of finding ? all("code", finding) : []) {
      if (line.nextElementSibling?.matches(".copy")) continue;
      const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "copy" });
      line.after(" ", button);
    }
  }, true);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.(".copy");
    if (!button) return;
    button.textContent = (await copied(button.previousElementSibling.textContent)) ? "copied" : "copy by hand";
    button.focus();
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });

  const go = (direction) => {
    const visible = all(".finding").filter((finding) => !finding.hidden);
    const now = visible.indexOf(document.activeElement.closest?.(".finding"));
    const next = visible[now < 0 ? (direction > 0 ? 0 : visible.length - 1) : now + direction];
    if (!next) return;
    next.querySelector("summary").focus();
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const view = event.target.closest?.(".view");
    if (view && (event.key in steps || event.key === "Home" || event.key === "End")) {
      onMap(event, view);
    } else if (event.target.matches?.("input, select, textarea")) {
      if (event.key === "Escape" && event.target.id === "words") {
        event.target.value = "";
        filter();
      }
    } else if (event.key === "/") {
      event.preventDefault();
      byId("words").focus();
    } else if (event.key === "j" || event.key === "k") {
      go(event.key === "j" ? 1 : -1);
    }
  });

  const follow = () => {
    const target = location.hash.length > 1 ? byId(location.hash.slice(1)) : null;
    if (!(target instanceof HTMLDetailsElement)) return;
    target.open = true;
    target.querySelector("summary").focus({ preventScroll: true });
    target.scrollIntoView({ block: "start" });
  };
  addEventListener("hashchange", follow);
  filter();
  follow();
})();
