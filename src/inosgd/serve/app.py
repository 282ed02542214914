"""The application: which address shows what, to whom.

Every request opens the book anew, in a thread of its own, and closes it: a book that is gone is noticed at once, and
found again when it is back. Those that write do so one after the other, so that trainings which draw on the same book
never wait for more than one of them.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from inosgd._extras import needs
from inosgd.accounts.book import Accounts
from inosgd.accounts.receipts import check_script, receipt_of
from inosgd.accounts.requests import accept, decline, waiting
from inosgd.errors import AccountError, InfeasibleError, InosgdError, InvalidArgumentError
from inosgd.plan_config import VARIANTS
from inosgd.serve.audit import note
from inosgd.serve.changes import PAUSE, WITHDRAW, Wish, consequence, do
from inosgd.serve.limits import MOST_CHANGES, Attempts, Guard
from inosgd.serve.links import Visitor, note_of, visitor_with
from inosgd.serve.model_view import model_view, plan_view
from inosgd.serve.owner_view import owner_view
from inosgd.serve.pages import STATIC, render, static
from inosgd.serve.sessions import LIFETIME, close_session, form_token, is_own_form, open_session, visitor_of
from inosgd.serve.settings import Settings
from inosgd.serve.trainings import in_progress

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOG = logging.getLogger("inosgd.serve")

MOST_FIELDS = 20
"""No form has more."""

MOST_NOTED = 100
"""So many refused log-ins go into the audit log within five minutes, whatever addresses they come from."""


@dataclass(frozen=True)
class Asked:
    """A request as pages look at it: plain values."""

    query: Mapping[str, str]
    form: Mapping[str, str]
    session: str | None
    address: str
    own_page: bool


@dataclass(frozen=True)
class Answer:
    """What is sent back: a page, a file, or another address to go to."""

    body: bytes = b""
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    session: str | None = None
    """A new session to log in with; empty to log out."""


Page = Callable[[Accounts, Visitor, Asked], Answer]


class Stopped(Exception):  # noqa: N818
    """A request that ends with a page that says why."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text


def application(settings: Settings) -> Any:
    """The application of a book, for an ASGI server."""
    with needs("serve"):
        from starlette.applications import Starlette
        from starlette.routing import Route

    site = _Site(settings)
    owner, model = site.for_owner, site.for_model_owner
    pages = [
        ("/", "GET", site.inside(_home)),
        ("/enter", "GET", site.outside(_enter_page)),
        ("/enter", "POST", site.outside(site.log_in)),
        ("/leave", "POST", site.inside(_leave)),
        ("/change", "GET", owner(_consequence)),
        ("/change", "POST", owner(site.change)),
        ("/done", "GET", owner(_done)),
        ("/receipt.json", "GET", owner(_receipt)),
        ("/check_receipt.py", "GET", owner(_script)),
        ("/request", "POST", model(_answer_request)),
        ("/plan", "GET", model(_plan)),
        ("/trainings.json", "GET", model(_trainings)),
    ]
    routes = [Route(path, end, methods=[method]) for path, method, end in pages]
    routes += [Route(f"/{name}", _file(name), methods=["GET"]) for name in STATIC]
    site_of_routes = Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})
    site_of_routes.router.redirect_slashes = False  # behind a proxy it would send forms on without TLS
    return Guard(site_of_routes, settings)


class _Site:
    """What all pages share: the book's address, wrong attempts, and the turn of those who write."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self._turn = settings, threading.Lock()
        self.attempts, self._noted, self._changes = Attempts(), Attempts(MOST_NOTED), Attempts(MOST_CHANGES)
        self._cookie = "__Host-session" if settings.secure else "session"

    def for_owner(self, page: Page) -> Any:
        """A page for owners alone."""
        return self.inside(_only(page, model_owner=False))

    def for_model_owner(self, page: Page) -> Any:
        """A page for the model owner alone."""
        return self.inside(_only(page, model_owner=True))

    def inside(self, page: Page) -> Any:
        """A page for who has logged in."""

        def answer(book: Accounts, asked: Asked) -> Answer:
            visitor = visitor_of(book, asked.session)
            if visitor is None:
                return _go("/enter")
            return page(book, visitor, asked)

        return self.outside(answer)

    def outside(self, answer: Callable[[Accounts, Asked], Answer]) -> Any:
        """A page for anyone."""
        from starlette.concurrency import run_in_threadpool

        async def end(request: Request) -> Response:
            asked = await self._asked(request)
            return self._response(await run_in_threadpool(self._answered, request.method, answer, asked))

        return end

    async def _asked(self, request: Request) -> Asked:
        body = await request.body()
        kind = request.headers.get("content-type", "").partition(";")[0]
        form = _values(body.decode("utf-8", "replace")) if kind == "application/x-www-form-urlencoded" else {}
        address = request.client.host if request.client else ""
        if self.settings.secure:  # the proxy adds the address that it sees at the end, or as a header of its own
            seen = ",".join([address, *request.headers.getlist("x-forwarded-for")])
            address = seen.rpartition(",")[2].strip()
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "same-origin")
        own = site == "same-origin" and origin in self._origins
        query = _values(request.url.query)
        return Asked(query, form, request.cookies.get(self._cookie), address, own)

    @property
    def _origins(self) -> set[str]:
        scheme = "https" if self.settings.secure else "http"
        return {f"{scheme}://{host}" for host in self.settings.hosts}

    def _answered(self, method: str, answer: Callable[[Accounts, Asked], Answer], asked: Asked) -> Answer:
        try:
            if method == "POST":
                if not asked.own_page:
                    raise Stopped(403, "This form is not from here", "Nothing was changed. Open the page by your link.")
                with self._turn, self._book() as book:
                    return answer(book, asked)
            with self._book() as book:
                return answer(book, asked)
        except Stopped as stop:
            return _problem(stop.status, stop.title, stop.text)
        except (InvalidArgumentError, InfeasibleError) as error:
            return _problem(400, "This cannot be done", str(error))
        except AccountError as error:
            return _problem(409, "Things have changed", str(error))
        except Exception as error:
            LOG.error("a request failed: %s", type(error).__name__)  # its text could hold names
            return _problem(500, "Something went wrong", "Nothing was changed. Try again, or tell the model owner.")

    def _book(self) -> Accounts:
        try:
            return Accounts.open(self.settings.book)
        except (InosgdError, OSError, sqlite3.Error) as error:
            LOG.error("the book cannot be opened: %s", type(error).__name__)
            raise Stopped(
                503, "The account book cannot be reached", "Nothing was changed. Try again in a few minutes."
            ) from None

    def _response(self, answer: Answer) -> Response:
        from starlette.responses import Response

        response = Response(answer.body, answer.status, dict(answer.headers), answer.kind)
        if answer.session is not None:
            lifetime = int(LIFETIME.total_seconds()) if answer.session else 0
            response.set_cookie(
                self._cookie,
                answer.session,
                lifetime,
                path="/",
                secure=self.settings.secure,
                httponly=True,
                samesite="strict",
            )
        return response

    def log_in(self, book: Accounts, asked: Asked) -> Answer:
        """From a link's token to a session."""
        if not self.attempts.allowed(asked.address):
            raise Stopped(429, "Too many attempts", "Wait a few minutes, then open your link again.")
        visitor = visitor_with(book, asked.form.get("token", ""))
        if visitor is None:
            self.attempts.done(asked.address)
            if self._noted.allowed(""):  # so that no stranger fills the book
                self._noted.done("")
                with book.database.writing():
                    note(book, None, "refused log-in")
            raise Stopped(403, "This link opens nothing", "It is not complete, or was revoked. Ask for a new one.")
        return Answer(status=303, headers={"location": "/"}, session=open_session(book, visitor))

    def change(self, book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
        """Do what an owner has confirmed; not again and again, as each change is kept and makes trainings plan anew."""
        wish, seen = Wish.read(asked.form.get("action", ""), asked.form.get("epsilon", "")), asked.form.get("seen", "")
        _check_form(asked, "change", wish.action, wish.text, seen)
        owner = f"{visitor.collection} {visitor.owner}"
        if wish.action not in (PAUSE, WITHDRAW) and not self._changes.allowed(owner):
            raise Stopped(429, "Too many changes", "Nothing was changed. Wait a few minutes, or pause or withdraw now.")
        entry = do(book, visitor, wish, seen)
        self._changes.done(owner)
        return _go("/done?request" if entry is None else f"/done?entry={entry}")


def _only(page: Page, *, model_owner: bool) -> Page:
    def checked(book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
        if visitor.is_model_owner != model_owner:
            raise Stopped(404, "There is no such page", "Go back to where you came from.")
        return page(book, visitor, asked)

    return checked


def _home(book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
    leave = form_token(str(asked.session), "leave")
    if not visitor.is_model_owner:
        return _page("owner", view=owner_view(book, visitor), leave=leave)
    view = model_view(book, asked.query.get("collection"), asked.query.get("search", ""))
    tokens = {
        (each.number, verdict): form_token(str(asked.session), "request", str(each.number), str(seen), verdict)
        for each, _, seen in view.requests
        for verdict in ("accept", "decline")
    }
    return _page("model", view=view, tokens=tokens, leave=leave, variants=VARIANTS)


def _enter_page(_: Accounts, __: Asked) -> Answer:
    return _page("enter")


def _leave(book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
    _check_form(asked, "leave")
    close_session(book, visitor, str(asked.session))
    return Answer(status=303, headers={"location": "/enter"}, session="")


def _consequence(book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
    wish = Wish.read(asked.query.get("action", ""), asked.query.get("epsilon", ""))
    found = consequence(book, visitor, wish)
    token = form_token(str(asked.session), "change", wish.action, wish.text, found.seen)
    leave = form_token(str(asked.session), "leave")
    return _page("consequence", found=found, wish=wish, token=token, leave=leave)


def _done(book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
    view, leave = owner_view(book, visitor), form_token(str(asked.session), "leave")
    entry = asked.query.get("entry", "")
    own = entry == str(view.standing.entry) and view.standing.entry > 0
    found = next((each for each in book.entries(visitor.collection, "budgets") if str(each.number) == entry), None)
    time, digest = (found.time, found.hash) if own and found is not None else ("", "")
    return _page("done", view=view, entry=entry if own else None, time=time, digest=digest, leave=leave)


def _receipt(book: Accounts, visitor: Visitor, _: Asked) -> Answer:
    found = receipt_of(book, book.collection_numbered(int(visitor.collection or 0)).name, str(visitor.owner))
    return _download(json.dumps(found).encode(), "application/json", "receipt.json")


def _script(_: Accounts, __: Visitor, ___: Asked) -> Answer:
    return _download(check_script().encode(), "text/x-python; charset=utf-8", "check_receipt.py")


def _answer_request(book: Accounts, visitor: Visitor, asked: Asked) -> Answer:
    number, seen, verdict = (asked.form.get(name, "") for name in ("number", "seen", "verdict"))
    _check_form(asked, "request", number, seen, verdict)
    found = next((each for each in waiting(book) if str(each.number) == number), None)
    if found is None:
        raise AccountError("this request does not wait any more. Nothing was changed now")
    collection = book.collection_numbered(found.collection).name
    if verdict == "accept":
        also = partial(note_of, book, visitor, "accepted a request")
        accept(book, collection, found, int(seen), f"link {visitor.link}", also)
    else:
        with book.database.writing():
            decline(book, found)
            note_of(book, visitor, "declined a request")
    return _go("/")


def _plan(book: Accounts, _: Visitor, asked: Asked) -> Answer:
    collection = asked.query.get("collection", "")
    try:
        steps, batch = int(asked.query.get("steps", "")), float(asked.query.get("batch", ""))
    except ValueError:
        raise InvalidArgumentError("steps, batch: give a whole number and a number greater than 0") from None
    variant = asked.query.get("variant", "")
    view = plan_view(book, collection, steps, batch, variant)
    leave = form_token(str(asked.session), "leave")
    return _page("plan", view=view, collection=collection, steps=steps, batch=batch, variant=variant, leave=leave)


def _trainings(book: Accounts, _: Visitor, asked: Asked) -> Answer:
    name = asked.query.get("collection")
    number = None if name is None else book.collection(name).number
    found = [each.to_json() for each in in_progress(book, number)]
    return Answer(json.dumps(found).encode(), kind="application/json")


def _check_form(asked: Asked, *what: str) -> None:
    if asked.session is None or not is_own_form(asked.session, asked.form.get("csrf", ""), *what):
        raise Stopped(403, "This form cannot be used", "Nothing was changed. Go back to your page and start again.")


def _values(text: str) -> dict[str, str]:
    """The fields of a form, each once; a name that comes twice is given up, and so are all of too many."""
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items() if len(values) == 1}


def _page(template: str, **values: Any) -> Answer:
    return Answer(render(template, **values).encode())


def _problem(status: int, title: str, text: str) -> Answer:
    return Answer(render("problem", title=title, text=text).encode(), status)


def _go(address: str) -> Answer:
    return Answer(status=303, headers={"location": address})


def _download(body: bytes, kind: str, name: str) -> Answer:
    return Answer(body, kind=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


def _file(name: str) -> Any:
    async def end(_: Request) -> Response:
        from starlette.responses import Response

        return Response(static(name), media_type=STATIC[name])

    return end


async def _missing(_: Request, __: Exception) -> Response:
    from starlette.responses import Response

    body = render("problem", title="There is no such page", text="Go back to where you came from.")
    return Response(body, 404, media_type="text/html")
