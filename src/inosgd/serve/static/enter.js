// The secret stands behind the # of a link, which browsers do not send. It is put into the field, and out of the address.
"use strict";
const secret = decodeURIComponent(location.hash.slice(1));
if (secret) {
  document.getElementById("token").value = secret;
  history.replaceState(null, "", location.pathname);
  document.querySelector("button.main").focus();
}
