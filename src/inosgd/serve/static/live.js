// Trainings in progress, asked for again every other second while the page is looked at.
"use strict";
const place = document.getElementById("trainings");
const every = 2000;

function show(training, row) {
  for (const field of row.querySelectorAll("[data-field]")) {
    const text = String(training[field.dataset.field]);
    if (field.textContent !== text) field.textContent = text;
  }
  const bar = row.querySelector("progress");
  bar.max = training.planned;
  bar.value = training.steps;
}

async function look() {
  if (document.visibilityState === "visible") {
    try {
      const answer = await fetch("/trainings.json?collection=" + encodeURIComponent(place.dataset.collection));
      if (answer.redirected) return location.assign("/enter");
      const trainings = await answer.json();
      const rows = new Map([...place.querySelectorAll("tr[data-reservation]")].map((row) => [row.dataset.reservation, row]));
      if (trainings.length !== rows.size || trainings.some((each) => !rows.has(each.reservation))) {
        const busy = document.activeElement && document.activeElement.matches("input, select");
        if (!busy) return location.reload();
      }
      for (const each of trainings) if (rows.has(each.reservation)) show(each, rows.get(each.reservation));
      place.dataset.looked = String(Date.now());
    } catch (error) {
      // The server is away for a moment: the next look says so or finds it again.
    }
  }
  setTimeout(look, every);
}
setTimeout(look, every);
