"""Attacks on the page: other owners' links, forged and replayed forms, markup in names, oversized and slow requests."""

from __future__ import annotations

import datetime
import logging
import os
import shutil
import socket
import sqlite3
import threading
import time
from contextlib import nullcontext
from urllib.parse import urlencode

import pytest
from markupsafe import escape
from starlette.testclient import TestClient

from inosgd.accounts.book import Accounts
from inosgd.accounts.requests import waiting
from inosgd.accounts.verification import verify_book
from inosgd.errors import AccountError, InvalidArgumentError, UnknownOwnerError
from inosgd.owners import OwnerTable
from inosgd.serve import limits, server
from inosgd.serve.app import MOST_FIELDS, MOST_NOTED, application
from inosgd.serve.audit import lines
from inosgd.serve.changes import Wish, account_of, do
from inosgd.serve.limits import LARGEST_BODY, MOST_CHANGES, MOST_FAILURES, Attempts
from inosgd.serve.links import digest, links, make_link, revoke, visitor_with
from inosgd.serve.sessions import open_session, visitor_of
from inosgd.serve.settings import Settings
from tests.accounts.books import new_book, same_for_all
from tests.serve.running import served
from tests.serve.visiting import Visit, form_of, plain

EVIL = '<script>alert("1")</script>"><img src=x onerror=alert(1)> {{ 7*7 }} &amp;'
OWNER_PAGES = ("/change?action=pause", "/done", "/receipt.json", "/check_receipt.py")
MODEL_PAGES = ("/plan?collection=patients&steps=5&batch=5&variant=scale", "/trainings.json")


def test_wrong_revoked_and_cut_links_open_nothing(book, visit):
    token = make_link(book, "patients", "clinic")
    identifier, _, secret = token.partition(".")
    other = make_link(book, "patients", "hospital").partition(".")
    wrong = ["", ".", identifier, token[:-1], token + "a", f"{identifier}.{other[2]}", f"{other[0]}.{secret}", "ÿ.ÿ"]
    for attempt in wrong:
        assert visitor_with(book, attempt) is None, attempt
    assert visitor_with(book, token).owner == "clinic"
    owner = visit("clinic", token)
    assert owner.get("/").status_code == 200
    revoke(book, identifier)
    assert owner.get("/").headers["location"] == "/enter"  # the session has ended with the link
    assert visit("clinic", token).entered.status_code == 403
    with pytest.raises(InvalidArgumentError, match="no such link"):
        revoke(book, "00000000")
    with pytest.raises(UnknownOwnerError):
        make_link(book, "patients", "nobody")


@pytest.mark.parametrize("wish", [Wish("lower", 0.1), Wish("raise", 2.0), Wish("withdraw"), None])
def test_what_was_on_its_way_when_the_link_was_revoked_is_not_done(book, wish):
    """The visitor was let in before, and its turn to write comes after; None is its log-in. The control has a link."""
    visitor, other = (visitor_with(book, make_link(book, "patients", "clinic")) for _ in range(2))
    revoke(book, visitor.link)
    for of in (visitor, other):
        seen, before = account_of(book, of).seen, (book.head, len(waiting(book)), len(lines(book)))
        with pytest.raises(AccountError, match="revoked") if of == visitor else nullcontext():
            open_session(book, of) if wish is None else do(book, of, wish, seen)
        assert (before == (book.head, len(waiting(book)), len(lines(book)))) == (of == visitor)


@pytest.mark.parametrize("verdict", ["accept", "decline"])
def test_a_model_owner_whose_link_was_revoked_answers_no_request(book, visit, verdict, monkeypatch):
    visit("clinic").change("raise", 2)
    token = make_link(book)
    model, visitor, head = visit(None, token), visitor_with(book, token), book.head
    form = form_of(model.get("/").text, "/request", verdict=verdict)
    monkeypatch.setattr("inosgd.serve.app.visitor_of", lambda *_: visitor)  # as it was let in
    for revoked in (True, False):
        time = "2026-11-18" if revoked else None
        book.database.rows("UPDATE links SET revoked = ? WHERE id = ?", [time, visitor.link])
        assert model.post("/request", form).status_code == (409 if revoked else 303)
        assert (len(waiting(book)) == 1) == revoked
    assert (book.head == head) == (verdict == "decline")


def test_a_request_that_came_in_between_is_not_taken_back(book, monkeypatch):
    """By another process: a lowering takes back the request that its consequence was shown with, and no later one."""
    visitor = visitor_with(book, make_link(book, "patients", "clinic"))
    seen, set_budgets = account_of(book, visitor).seen, book.set_budgets

    def overtaken(*args, **kwargs):
        do(book, visitor, Wish("raise", 2.0), seen)
        return set_budgets(*args, **kwargs)

    monkeypatch.setattr(book, "set_budgets", overtaken)
    with pytest.raises(AccountError, match="changed since you saw this"):
        do(book, visitor, Wish("lower", 0.1), seen)
    assert [each.budget.epsilon for each in waiting(book)] == [2.0]
    assert account_of(book, visitor).standing.entry == 0


def test_a_clock_that_is_set_back_prolongs_no_session(tmp_path):
    now = noon = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)
    with new_book(f"sqlite:///{tmp_path}/a.db", clock=lambda: now) as book:
        visitor = visitor_with(book, make_link(book, "patients", "clinic"))
        session = open_session(book, visitor)
        for minutes, there in ((0, True), (119, True), (121, False), (-0.5, True), (-2, False), (-60 * 24, False)):
            now = noon + datetime.timedelta(minutes=minutes)
            assert (visitor_of(book, session) == visitor) == there, minutes


def test_secrets_are_nowhere_in_the_book(book, tmp_path, visit):
    token = make_link(book, "patients", "clinic")
    owner = visit("clinic", token)
    session = owner.client.cookies["session"]
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    secret = token.partition(".")[2]
    assert digest(secret) in content
    for each in (secret, session):
        assert each.encode() not in content


def test_an_owner_sees_nothing_of_another_and_no_page_of_the_model_owner(book, visit):
    visit("hospital").change("raise", 7)
    owner = visit("clinic")
    for path in ("/", *OWNER_PAGES):
        found = owner.get(path)
        assert found.status_code == 200
        for other in ("hospital", "registry"):
            assert other not in found.text
    for path in MODEL_PAGES:
        assert owner.get(path).status_code == 404
    for path in OWNER_PAGES:
        assert visit(None).get(path).status_code == 404
    model_form = form_of(visit(None).get("/").text, "/request", verdict="accept")
    assert owner.post("/request", model_form).status_code == 404
    assert len(waiting(book)) == 1


def test_nobody_without_a_session_gets_in(book, visit):
    stranger = visit("clinic", "wrong.wrong")
    for path in ("/", *OWNER_PAGES, *MODEL_PAGES):
        assert stranger.get(path).headers.get("location") == "/enter"
    for cookie in ("", "x", "' OR 1=1 --"):
        stranger.client.cookies.set("session", cookie)
        assert stranger.get("/").headers.get("location") == "/enter"


@pytest.mark.parametrize("field", ["csrf", "action", "epsilon", "seen"])
def test_a_form_that_was_edited_is_refused(book, visit, field):
    owner, before = visit("hospital"), book.head
    form = owner.asked("lower", 0.9)
    other = {"csrf": "0" * 64, "action": "raise", "epsilon": "0.1", "seen": "7.0"}[field]
    assert owner.post("/change", {**form, field: other}).status_code == 403
    assert owner.post("/change", {name: form[name] for name in form if name != field}).status_code in (400, 403)
    assert book.head == before


def test_a_form_of_another_session_or_site_is_refused(book, visit):
    owner, before = visit("hospital"), book.head
    form = owner.asked("lower", 0.9)
    assert visit("hospital").post("/change", form).status_code == 403
    assert visit("clinic").post("/change", form).status_code == 403
    assert owner.post("/change", form, origin="https://evil.example").status_code == 403
    assert owner.post("/change", form, origin="null").status_code == 403
    assert owner.post("/change", form, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert owner.client.get("/change?" + urlencode(form)).status_code == 200  # it shows, and does nothing
    assert book.head == before
    assert owner.post("/change", form).status_code == 303  # the control: it was a good form


def test_a_form_works_once_and_only_for_what_was_seen(book, visit):
    owner = visit("hospital")
    form = owner.asked("lower", 0.9)
    assert owner.post("/change", form).status_code == 303
    replayed = owner.post("/change", form)
    assert replayed.status_code in (400, 409)
    pause, lower = owner.asked("pause"), owner.asked("lower", 0.5)
    assert owner.post("/change", lower).status_code == 303
    stale = owner.post("/change", pause)
    assert stale.status_code == 409
    assert "look again" in plain(stale.text)
    request = owner.asked("raise", 3)
    assert owner.post("/change", request).status_code == 303
    assert owner.post("/change", request).status_code == 409
    model = visit(None)
    form = form_of(model.get("/").text, "/request", verdict="accept")
    assert model.post("/request", {**form, "verdict": "decline"}).status_code == 403
    assert model.post("/request", form).status_code == 303
    assert model.post("/request", form).status_code == 409
    assert len(book.entries(kind="budgets")) == 3


def test_a_request_that_the_owner_overtook_is_not_accepted(book, visit):
    owner, model = visit("hospital"), visit(None)
    owner.change("raise", 3)
    form = form_of(model.get("/").text, "/request", verdict="accept")
    owner.change("pause")
    assert model.post("/request", form).status_code == 409
    assert book.standing("patients", "hospital").state == "paused"


def test_markup_in_names_is_text(tmp_path):
    table = OwnerTable((EVIL, "b"), [1.0, 2.0], [1e-5, 1e-5], [10, 10])
    url = f"sqlite:///{tmp_path}/a.db"
    with Accounts.create(url) as book:
        book.open_collection(EVIL, table)
        book.reserve(EVIL, table.names, same_for_all(0.01, 5.0, 10, owners=2), run=tmp_path / "<b>run</b>")
        owner, model = (Visit(application(Settings(url)), make_link(book, *of)) for of in ((EVIL, EVIL), ()))
        owner.change("raise", 3)
        evil_paths = ("/plan?" + urlencode({"collection": EVIL, "steps": 5, "batch": 5, "variant": "<b>"}),)
        pages = [owner.get("/"), owner.get("/change?action=pause"), model.get("/"), *map(model.get, evil_paths)]
        pages += [owner.get("/change?" + urlencode({"action": EVIL, "epsilon": EVIL})), model.get("/?search=" + EVIL)]
        for page in pages:
            assert "<script>alert" not in page.text
            assert "<img" not in page.text
            assert "<b>" not in page.text
            assert "49" not in page.text.replace("&#34;", "").split("csrf")[0]
        assert f"<bdi>{escape(EVIL)}</bdi>" in model.get("/").text  # no name turns the text beside it around
        assert EVIL in plain(model.get("/").text) or "alert(" in plain(model.get("/").text)


def test_what_answers_say_to_the_browser(visit, book, tmp_path):
    answer = visit("clinic").get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    for inline in ("style=", "onclick", "javascript:", "<script>"):
        assert inline not in answer.text
    cookie = visit("clinic").entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    settings = Settings(f"sqlite:///{tmp_path}/accounts.db", public="https://budgets.example.org")
    app = application(settings)
    proxied = Visit(app, None, "https://budgets.example.org", host="budgets.example.org")
    entered = proxied.post("/enter", {"token": make_link(book, "patients", "clinic")})
    assert entered.headers["set-cookie"].startswith("__Host-session=")
    assert "secure" in entered.headers["set-cookie"].lower()
    assert "max-age" in entered.headers["strict-transport-security"]


def test_other_hosts_are_refused(visit, book):
    owner = visit("clinic")
    assert owner.client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert owner.client.get("/", headers={"host": "localhost:8750"}).status_code in (200, 303)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "example.org", "::"])
def test_other_machines_need_a_proxy(host):
    with pytest.raises(InvalidArgumentError, match="--behind-proxy"):
        Settings("sqlite:///a.db", host)
    assert Settings("sqlite:///a.db", host, public="https://a.example").secure


@pytest.mark.parametrize(
    ("public", "host"),
    [
        ("https://Budgets.Example.org/", "budgets.example.org"),
        ("https://budgets.example.org:443", "budgets.example.org"),
        ("https://budgets.example.org:8443", "budgets.example.org:8443"),
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("https://[::1]", "[::1]"),
    ],
)
def test_the_address_of_a_proxy_is_taken_as_browsers_say_it(public, host):
    settings = Settings("sqlite:///a.db", public=public)
    assert (settings.hosts, settings.origin) == ({host}, f"https://{host}")


@pytest.mark.parametrize(
    "public",
    [
        "http://a.example",
        "a.example",
        "https://",
        "https://a.example/page",
        "https://a.example#x",
        "https://u@a.example",
        "https://a..example",
        "https://a.example:99999",
    ],
)
def test_a_proxy_needs_tls(public):
    with pytest.raises(InvalidArgumentError, match="behind_proxy"):
        Settings("sqlite:///a.db", public=public)


def test_guessing_is_slowed_down(visit, book):
    stranger = visit("clinic", "a.b")
    codes = [stranger.post("/enter", {"token": f"{number:08x}.x"}).status_code for number in range(12)]
    assert codes[0] == 403
    assert codes[-1] == 429
    assert stranger.post("/enter", {"token": make_link(book, "patients", "clinic")}).status_code == 429
    assert [line.action for line in lines(book)].count("refused log-in") == 10


def test_guessing_is_slowed_down_whatever_a_stranger_says_of_its_address(book, tmp_path):
    """A proxy appends the address that it sees to the header, or adds one of its own after it."""
    public = "https://budgets.example.org"
    kinds = [("origin", public), ("content-type", "application/x-www-form-urlencoded")]
    for proxy in (lambda said: [f"{said}, 192.0.2.1"], lambda said: [said, "192.0.2.1"]):
        app = application(Settings(f"sqlite:///{tmp_path}/accounts.db", public=public))
        client = TestClient(app, base_url=public, follow_redirects=False)
        said = [f"198.51.100.{number}" for number in range(MOST_FAILURES + 1)]
        headers = [[*kinds, *(("x-forwarded-for", each) for each in proxy(address))] for address in said]
        found = [client.post("/enter", content="token=a.b", headers=each).status_code for each in headers]
        assert found == [403] * MOST_FAILURES + [429]


def test_no_address_leads_from_tls_to_none(book, tmp_path):
    """A redirect with status 307 sends a form on, and its secret with it."""
    public = "https://budgets.example.org"
    app = application(Settings(f"sqlite:///{tmp_path}/accounts.db", public=public))
    client = TestClient(app, base_url="http://budgets.example.org", follow_redirects=False)  # what a proxy passes on
    for path in ("/enter/", "/change/", "/receipt.json/", "/page.css/"):
        found = [client.get(path), client.post(path, data={"token": "a.b"}, headers={"origin": public})]
        assert [each.status_code for each in found] == [404, 404]
        assert not any("location" in each.headers for each in found)


def test_forms_of_too_many_fields_and_odd_lengths_are_answered(book, visit):
    owner, before = visit("hospital"), book.head
    many = {f"field{number}": "1" for number in range(MOST_FIELDS)}
    assert owner.get("/enter?" + urlencode({**many, "action": "pause"})).status_code == 200
    form = owner.asked("lower", 0.9)
    assert owner.post("/change", {**form, **many}).status_code == 400
    assert owner.client.post("/enter", content=b"", headers={"content-length": "9" * 5000}).status_code == 413
    assert visit("hospital", "\0.\0").entered.status_code == 403
    assert book.head == before
    assert owner.post("/change", form).status_code == 303  # the control: it was a good form


def test_methods_and_paths_in_other_spellings_change_nothing_and_show_nothing_more(book, visit):
    owner, before = visit("hospital"), book.head
    form = owner.asked("lower", 0.9)
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FOO"):
        assert owner.client.request(method, "/change", data=form).status_code == 404
    for name in ("x-http-method-override", "x-http-method", "x-method-override"):
        found = owner.client.get("/change?" + urlencode(form), headers={name: "POST"})
        assert found.status_code == 200  # it shows the consequence
    assert owner.client.head("/change?" + urlencode(form)).content == b""
    stranger = visit("hospital", "a.b")
    for path in (
        "/%72eceipt.json",
        "/page.css/../receipt.json",
        "//receipt.json",
        "/./receipt.json",
        "/receipt.json?x",
    ):
        assert stranger.get(path).status_code in (303, 404)
        assert stranger.get(path).headers.get("location", "/enter") == "/enter"
    for path in (
        "/page.css/../../app.py",
        "/..%2fapp.py",
        "/%2e%2e/app.py",
        "/templates/base.html",
        "/receipt.json%00",
    ):
        assert owner.get(path).status_code == 404
    assert book.head == before


@pytest.mark.parametrize(
    "number", ["NaN", "-1", "0", "-0.0", "inf", "1e999", "1e-5000", "9" * 5000, "0x1", "½", "", "\0", "1;"]
)
def test_what_is_no_number_is_no_budget(book, visit, number):
    owner, before = visit("hospital"), book.head
    for action in ("lower", "raise"):
        assert owner.get("/change?" + urlencode({"action": action, "epsilon": number})).status_code == 400
    model, plan = visit(None), {"collection": "patients", "variant": "scale"}
    for asked in ({"steps": number, "batch": "5"}, {"steps": "5", "batch": number}):
        assert model.get("/plan?" + urlencode({**plan, **asked})).status_code == 400
    assert book.head == before


def test_the_smallest_budget_a_pause_and_a_withdrawal_follow_each_other(book, visit):
    owner, model = visit("hospital"), visit(None)
    for action, epsilon in (("lower", "5e-324"), ("pause", ""), ("withdraw", "")):
        assert owner.change(action, epsilon).status_code == 303
        pages = [owner.get("/"), owner.get("/done"), owner.get("/receipt.json"), model.get("/")]
        assert [each.status_code for each in pages] == [200] * 4
    for action in ("resume", "pause", "lower", "raise", "withdraw"):
        assert owner.get(f"/change?action={action}&epsilon=0.5").status_code == 400
    assert book.standing("patients", "hospital").state == "withdrawn"
    assert verify_book(book).good


def test_attempts_are_forgotten_after_a_while_and_addresses_are_not_kept_for_ever():
    attempts = Attempts(2, 0.05, addresses=3)
    for _ in range(2):
        attempts.done("a")
    assert not attempts.allowed("a")
    assert attempts.allowed("b")
    time.sleep(0.06)
    assert attempts.allowed("a")
    for number in range(10):
        attempts.done(str(number))
    assert len(attempts._done) == 3
    assert MOST_NOTED < 1000


def test_an_owner_that_changes_its_budget_again_and_again_has_to_wait_unless_it_stops(book, visit):
    """Each change is an entry for ever and a new plan for each training. Another owner, and stopping, do not wait."""
    owner = visit("clinic")
    codes = [owner.change("lower", 0.5 - number / 1000).status_code for number in range(1, MOST_CHANGES + 2)]
    assert codes == [303] * MOST_CHANGES + [429]
    assert owner.change("raise", 5).status_code == 429
    assert visit("hospital").change("lower", 0.9).status_code == 303
    assert visit("clinic").change("pause").status_code == 303
    assert owner.change("resume").status_code == 429
    assert owner.change("withdraw").status_code == 303


def test_logs_hold_no_name_and_no_secret(visit, book, tmp_path, caplog, monkeypatch):
    token = make_link(book, "patients", "clinic")
    owner = visit("clinic", token)

    def broken(*_):
        raise RuntimeError(f"clinic {token}")

    monkeypatch.setattr("inosgd.serve.app.owner_view", broken)
    with caplog.at_level(logging.DEBUG):
        failed = owner.get("/")
    assert failed.status_code == 500
    for text in (caplog.text, failed.text):
        assert "clinic" not in text
        assert token not in text
    assert "RuntimeError" in caplog.text


def test_a_book_that_disappears_is_said_and_comes_back(visit, book, tmp_path):
    owner = visit("clinic")
    form, path = owner.asked("pause"), tmp_path / "accounts.db"
    book.close()
    shutil.move(path, tmp_path / "gone.db")
    for answer in (owner.get("/"), owner.post("/change", form), owner.post("/enter", {"token": "a.b"})):
        assert answer.status_code == 503
        assert "cannot be reached" in answer.text
        assert str(tmp_path) not in answer.text
    assert not path.exists()  # and none was made
    path.write_bytes(b"not a book" * 1000)
    assert owner.get("/").status_code == 503
    path.unlink()
    shutil.move(tmp_path / "gone.db", path)
    assert owner.post("/change", form).status_code == 303
    with Accounts.open(f"sqlite:///{path}") as again:
        assert again.standing("patients", "clinic").state == "paused"


def test_a_book_that_is_locked_is_waited_for(visit, book, tmp_path):
    owner = visit("clinic")
    form, other = owner.asked("pause"), sqlite3.connect(tmp_path / "accounts.db", check_same_thread=False)
    other.isolation_level = None
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, lambda: other.execute("COMMIT")).start()
    assert owner.post("/change", form).status_code == 303
    other.close()


@pytest.fixture
def running(book, tmp_path, monkeypatch):
    """The address of a real server, which waits for slow requests for half a second."""
    monkeypatch.setattr(server, "SECONDS_TO_SEND", 0.5)
    monkeypatch.setattr(limits, "SECONDS_TO_SEND", 0.5)
    with served(f"sqlite:///{tmp_path}/accounts.db") as settings:
        yield settings.host, settings.port


def sent(address, *pieces: bytes, pause: float = 0.0) -> bytes:
    """What a server answers to bytes that are sent in pieces."""
    with socket.create_connection(address, timeout=10) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            return b"closed"
        return answer


def head(address, path="/enter", method="GET", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Connection: close", *more, "", ""]
    return "\r\n".join(lines).encode()


def test_slow_and_oversized_requests_end_and_others_are_served(running):
    assert b"200 OK" in sent(running, head(running))
    began = time.monotonic()
    assert sent(running, b"GET /enter HT") in (b"", b"closed")  # a head that never comes to its end
    drip = [bytes([letter]) for letter in head(running)[:30]]
    assert b"200 OK" not in sent(running, *drip, pause=0.05)  # nor one that comes letter by letter
    long = head(running, "/enter", "POST", "Content-Type: application/x-www-form-urlencoded", "Content-Length: 100")
    assert b"408" in sent(running, long + b"token=a")
    assert time.monotonic() - began < 8
    large = head(running, "/enter", "POST", f"Content-Length: {LARGEST_BODY + 1}")
    assert b"413" in sent(running, large)
    chunked = head(running, "/enter", "POST", "Transfer-Encoding: chunked")
    chunks = b"".join(b"1000\r\n" + b"a" * 4096 + b"\r\n" for _ in range(4))
    assert b"413" in sent(running, chunked, chunks)
    assert b"200 OK" not in sent(running, head(running, "/enter", "GET", "X: " + "a" * 100_000))
    assert b"404" in sent(running, head(running, "/../../etc/passwd"))
    assert b"404" in sent(running, head(running, "/templates/base.html"))
    assert b"200 OK" in sent(running, head(running))


def test_many_connections_that_say_nothing_do_not_keep_others_out(running):
    silent = [socket.create_connection(running) for _ in range(200)]
    assert b"200 OK" in sent(running, head(running))
    time.sleep(0.8)
    assert all(each.recv(1) == b"" for each in silent)
    for each in silent:
        each.close()


def test_the_database_is_asked_by_values_never_by_text(book, visit):
    for text in ("'; DROP TABLE links; --", '" OR ""="', "%s", "?", "\0"):
        visit(None).get("/?" + urlencode({"search": text}))
        visit(None).get("/?" + urlencode({"collection": text}))
        visit("clinic", f"{text}.{text}")
    assert links(book)
    assert os.path.exists(book.database._connection.execute("PRAGMA database_list").fetchone()[2])
