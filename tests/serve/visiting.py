"""A visitor as a browser sends what it does: forms from the page, with the cookies and headers of a browser."""

from __future__ import annotations

import re
from html import unescape

from starlette.testclient import TestClient

ORIGIN = "http://127.0.0.1:8750"


class Visit:
    """Somebody who has opened a link."""

    def __init__(self, app, token: str | None = None, origin: str = ORIGIN, **headers: str) -> None:
        self.client = TestClient(app, base_url=ORIGIN, headers={"origin": origin, **headers}, follow_redirects=False)
        if token is not None:
            self.entered = self.post("/enter", {"token": token})

    def get(self, path: str):
        return self.client.get(path)

    def post(self, path: str, form: dict[str, str], **headers: str):
        return self.client.post(path, data=form, headers=headers)

    def asked(self, action: str, epsilon: float | str = "") -> dict[str, str]:
        """The form under the consequence of a wish."""
        page = self.get(f"/change?action={action}&epsilon={epsilon}")
        assert page.status_code == 200, page.text
        return form_of(page.text, "/change")

    def change(self, action: str, epsilon: float | str = ""):
        """Ask, and confirm."""
        return self.post("/change", self.asked(action, epsilon))

    def text(self, path: str = "/") -> str:
        return plain(self.get(path).text)


def form_of(page: str, action: str, **having: str) -> dict[str, str]:
    """The hidden fields of the first form with this action, and with these fields."""
    for form in re.findall(rf'<form[^>]*action="{action}"[^>]*>(.*?)</form>', page, flags=re.DOTALL):
        pairs = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form)
        fields = {name: unescape(value) for name, value in pairs}
        if having.items() <= fields.items():
            return fields
    raise AssertionError(f"no form {action} {having} in {plain(page)}")


def plain(page: str) -> str:
    """The words of a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))
