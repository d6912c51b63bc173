"use strict";
// All text of the trace goes in by textContent, never as markup.
(() => {
  const PAGE = 500; // tokens shown at a time, so that a long text stays quick
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const find = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const digits = (x) => (x === null || x === undefined ? "-" : x >= 0.0005 || x === 0 ? x.toFixed(3) : x.toExponential(1));
  // What would not be seen, or would break a line of a table, is spelled out.
  const shown = (text) => (text === "" ? "(part of a character)" : JSON.stringify(text).slice(1, -1).replace(/\\"/g, '"').replace(/ /g, "\u00b7"));

  const tokens = [];
  trace.steps.forEach((step, i) => step.emitted.forEach((token) => tokens.push({ ...token, step: i })));
  let here = 0;
  let page = -1;

  const showPage = (number) => {
    if (number === page) return;
    page = number;
    const first = page * PAGE;
    const some = tokens.slice(first, first + PAGE);
    const spans = some.map((token, i) => {
      const span = make("span", `token ${token.kind}`, token.text || "\u00b7");
      span.dataset.token = first + i;
      span.tabIndex = -1;
      return span;
    });
    find("text").replaceChildren(...spans);
    const last = Math.max(Math.ceil(tokens.length / PAGE) - 1, 0);
    find("pages").hidden = last === 0;
    find("page").textContent = `page ${page + 1} of ${last + 1}`;
    find("before").disabled = page === 0;
    find("after").disabled = page === last;
    showTimeline(some);
  };

  const showTimeline = (some) => {
    const numbers = [...new Set(some.map((token) => token.step))];
    const most = Math.max(...trace.steps.map((step) => step.emitted.length), 1);
    find("timeline").replaceChildren(
      ...numbers.map((i) => {
        const emitted = trace.steps[i].emitted;
        const bar = make("i");
        bar.dataset.step = i;
        bar.style.height = `${(100 * emitted.length) / most}%`;
        if (emitted.at(-1).kind === "accepted") bar.classList.add("cut");
        bar.title = `step ${i + 1}: ${emitted.length} tokens`;
        return bar;
      }),
    );
  };

  const go = (number, takesFocus) => {
    if (!tokens.length) return;
    here = Math.min(Math.max(number, 0), tokens.length - 1);
    showPage(Math.floor(here / PAGE));
    const step = tokens[here].step;
    for (const span of find("text").children) {
      const i = Number(span.dataset.token);
      span.classList.toggle("here", i === here);
      span.classList.toggle("same", tokens[i].step === step);
      span.tabIndex = i === here ? 0 : -1;
      if (i === here && takesFocus) span.focus();
    }
    for (const bar of find("timeline").children) bar.classList.toggle("here", Number(bar.dataset.step) === step);
    showStep(step);
  };

  const table = (title, heads, rows) => {
    const whole = make("table");
    whole.append(make("caption", "", title));
    const head = make("tr");
    heads.forEach((name) => {
      const cell = make("th", "", name);
      cell.scope = "col";
      head.append(cell);
    });
    const parts = make("thead");
    parts.append(head);
    const body = make("tbody");
    rows.forEach((row) => {
      const line = make("tr");
      row.forEach((cell) => line.append(cell));
      body.append(line);
    });
    whole.append(parts, body);
    return whole;
  };
  const cell = (text) => make("td", "", text);
  const code = (text, kind) => {
    const data = make("td");
    data.append(make("code", kind || "", shown(text)));
    return data;
  };
  const bar = (value, kind) => {
    const data = cell(digits(value));
    const line = make("span", `bar ${kind}`);
    line.style.width = `${100 * Math.min(value || 0, 1)}%`;
    data.append(line);
    return data;
  };

  const DRAWS = {
    lossy_thresholds: "the target's law without the refused token",
    token: "max(target - draft, 0), normalised",
    block: "max(P * target - draft, 0), normalised",
  };
  const test = (draft) => {
    if (trace.run.verify !== "token" || draft.draft === null || draft.target === null) return "";
    return digits(draft.draft > 0 ? Math.min(draft.target / draft.draft, 1) : 0);
  };

  const showStep = (number) => {
    const step = trace.steps[number];
    const kept = step.emitted.filter((token) => token.kind === "accepted").length;
    const parts = [];
    const drafted = step.draft ? ` of ${step.draft.length} drafted` : "";
    const drawn = step.emitted.length > kept ? `, then a ${step.emitted.at(-1).kind} token` : ", and the text ends";
    parts.push(make("p", "", `Step ${number + 1} of ${trace.steps.length}: ${kept}${drafted} accepted${drawn}.`));
    if (!step.draft) {
      parts.push(make("p", "", "No probabilities were recorded of this step."));
    } else if (step.draft.length) {
      const isTested = trace.run.verify === "token";
      const heads = ["draft token", "target", "draft", ...(isTested ? ["ratio"] : []), "uniform", "result"];
      const rows = step.draft.map((draft) => [
        code(draft.text, draft.result === "accepted" ? "accepted" : ""),
        bar(draft.target, "bonus"),
        bar(draft.draft, "drawn"),
        ...(isTested ? [cell(test(draft))] : []),
        cell(digits(draft.uniform)),
        cell(draft.result),
      ]);
      const title = isTested ? "Accepted while uniform < min(1, target / draft)" : `Judged by the rule ${trace.run.verify}`;
      parts.push(table(title, heads, rows));
    }
    if (step.candidates && step.candidates.length) {
      const isResidual = (step.draft || []).length > kept && trace.run.verify in DRAWS;
      const isKnown = step.candidates[0].draw !== null;
      const law = isResidual ? DRAWS[trace.run.verify] : isKnown ? "the target's law" : "a law of its own";
      const last = step.emitted.at(-1);
      const rows = step.candidates.map((one) => [
        code(one.text, one.token === last.token ? last.kind : ""),
        bar(one.draw, last.kind),
        bar(one.target, "bonus"),
        bar(one.draft, "drawn"),
      ]);
      const noise = step.sample_uniform === null ? "" : `, uniform ${digits(step.sample_uniform)}`;
      parts.push(table(`Drawn from ${law}${noise}: its likeliest tokens`, ["token", isResidual ? "residual" : "drawn", "target", "draft"], rows));
    }
    find("detail").replaceChildren(...parts);
  };

  const showPlaces = () => {
    const drafted = [];
    const accepted = [];
    trace.steps.forEach((step) => {
      (step.draft || []).forEach((draft, i) => {
        if (draft.result === "untested") return;
        drafted[i] = (drafted[i] || 0) + 1;
        accepted[i] = (accepted[i] || 0) + (draft.result === "accepted" ? 1 : 0);
      });
    });
    const rows = drafted.map((count, i) => [cell(`${i + 1}`), cell(`${count}`), bar(accepted[i] / count, "accepted")]);
    find("places").replaceChildren(
      rows.length
        ? table("Of those that were reached", ["place", "reached", "accepted"], rows)
        : make("p", "", "No draft tokens were recorded."),
    );
  };

  const MOVES = { ArrowRight: 1, ArrowLeft: -1, PageDown: PAGE, PageUp: -PAGE };
  find("text").addEventListener("keydown", (event) => {
    // Up and down go by steps: lines depend on the width of the window.
    let to = null;
    if (event.key in MOVES) to = here + MOVES[event.key];
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = tokens.length - 1;
    else if (event.key === "ArrowDown") to = tokens.findIndex((token) => token.step === tokens[here].step + 1);
    else if (event.key === "ArrowUp") to = tokens.findIndex((token) => token.step === tokens[here].step - 1);
    if (to === null) return;
    event.preventDefault();
    go(to < 0 && event.key.startsWith("Arrow") ? here : to, true);
  });
  const tokenAt = (event) => event.target.closest("[data-token]");
  find("text").addEventListener("mouseover", (event) => {
    const span = tokenAt(event);
    if (span) go(Number(span.dataset.token), false);
  });
  find("text").addEventListener("click", (event) => {
    const span = tokenAt(event);
    if (span) go(Number(span.dataset.token), true);
  });
  find("timeline").addEventListener("click", (event) => {
    const bar = event.target.closest("[data-step]");
    if (bar) go(tokens.findIndex((token) => token.step === Number(bar.dataset.step)), true);
  });
  find("before").addEventListener("click", () => go((page - 1) * PAGE, false));
  find("after").addEventListener("click", () => go((page + 1) * PAGE, false));

  document.querySelector("main").hidden = false;
  if (tokens.length) {
    go(0, false);
  } else {
    showPage(0);
    find("text").replaceChildren(make("p", "", "This run made no tokens."));
    find("detail").replaceChildren(make("p", "", "There are no steps."));
  }
  showPlaces();
})();
