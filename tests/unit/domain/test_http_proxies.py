"""Addresses of proxies: checked where they are read, and shown without their password."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput
from controller.domain.http_proxies import Proxy, through
from controller.settings import load_settings

PASSWORD = "s3cret"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        (f" http://ann:{PASSWORD}@proxy:3128/\n", "http://proxy:3128"),
        (f"https://ann:{PASSWORD}@[fd00::1]:3128", "https://[fd00::1]:3128"),
        ("http://proxy", "http://proxy"),
    ],
)
def test_a_proxy_is_shown_without_its_password(text: str, label: str) -> None:
    proxy = Proxy.of(text)

    assert (proxy.label, through(proxy), through(None)) == (label, f" through proxy {label}", "")
    assert proxy.url == text.strip()
    assert PASSWORD not in repr(proxy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "proxy:3128",
        f"socks5://ann:{PASSWORD}@proxy:1080",
        f"http://ann:{PASSWORD}@",
        f"http://ann:{PASSWORD}@proxy:99999",
        f"http://ann:{PASSWORD}@proxy:0",
        f"http://ann:{PASSWORD}@[fd00::1",
        f"http://ann:{PASSWORD}@proxy:3128/path",
        f"http://ann:{PASSWORD}@proxy:3128\nX: y",
        f"http://ann:{PASSWORD}@pr\u00f6xy",
    ],
)
def test_what_is_no_address_is_refused_by_the_name_of_its_setting_and_not_repeated(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput) as refused:
        Proxy.of(text)
    assert PASSWORD not in repr(refused.getrepr(style="long", showlocals=False))
    for name in ("CLEAVE_API_PROXY", "CLEAVE_AIRFLOW_PROXY"):
        with monkeypatch.context() as only:
            only.setenv(name, text)
            with pytest.raises(InvalidInput, match=name) as by_name:
                load_settings()
        assert PASSWORD not in str(by_name.value)
