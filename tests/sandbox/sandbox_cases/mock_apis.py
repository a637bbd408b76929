"""A small deterministic set of APIs for the snippets. Stdlib only, since plain CPython runs it for reference."""

from collections.abc import Callable
from typing import Any

Apis = dict[str, dict[str, Callable[..., Any]]]

SONGS = {
    i: {
        "song_id": i,
        "title": f"Song {i}",
        "artists": [{"id": i % 4, "name": f"Artist {i % 4}"}],
        "genre": ["pop", "rock", "jazz"][i % 3],
        "play_count": (i * 37) % 101,
        "rating": (i * 7) % 5 + 1,
        "release_date": f"20{10 + i % 10}-0{1 + i % 9}-1{i % 9}T10:00:00",
        "duration": 180 + i,
    }
    for i in range(1, 24)
}
PLAYLISTS = [
    {"playlist_id": p, "title": f"PL {p}", "song_ids": [(p * 3 + k) % 23 + 1 for k in range(6)]}
    for p in range(1, 8)
]
TRANSACTIONS = [
    {
        "transaction_id": i,
        "amount": round(3.5 * i, 2),
        "sender": {"name": f"P{i % 3}", "email": f"p{i % 3}@x.com"},
        "receiver": {"name": "Me", "email": "me@x.com"},
        "description": ["Rent", "lunch 🍕", "Utilities for May"][i % 3],
        "created_at": f"2023-05-{(i % 28) + 1:02d}T12:30:00",
    }
    for i in range(1, 31)
]
CONTACTS = [
    {"first_name": "Ann", "last_name": "Lee", "email": "ann@x.com", "relationships": ["roommate"]},
    {"first_name": "Bob", "last_name": "Ray", "email": "bob@x.com", "relationships": ["coworker", "friend"]},
    {"first_name": "Cy", "last_name": "O'Neil", "email": "cy@x.com", "relationships": ["sibling"]},
]
FILE = 'date,amount,note\n2023-05-01,12.50,lunch\n2023-05-02,8.00,coffee\n2023-05-03,30.25,"dinner, drinks"\n'


def make() -> Apis:
    """app -> operation -> function."""
    return {
        "supervisor": {
            "show_profile": lambda: {"first_name": "Sam", "last_name": "Me", "email": "me@x.com"},
            "show_account_passwords": lambda: [
                {"account_name": app, "password": "pw"} for app in ("spotify", "venmo")
            ],
            "complete_task": lambda answer=None, status="success": {"message": f"{status}: {answer}"},
        },
        "spotify": {
            "login": _login,
            "show_song": _show_song,
            "show_playlist_library": _show_playlist_library,
        },
        "venmo": {"login": _login, "show_transactions": _show_transactions, "send_money": _send_money},
        "phone": {"search_contacts": _search_contacts},
        "file_system": {"show_file": lambda path: {"path": path, "content": FILE}},
    }


def _login(username: str, password: str) -> dict[str, str]:
    if password != "pw":
        raise Exception('Response status code is 401:\n{"message":"Invalid credentials"}')
    return {"access_token": "tok-" + username, "token_type": "Bearer"}


def _need(token: str) -> None:
    if not token.startswith("tok-"):
        raise Exception('Response status code is 401:\n{"message":"You are not authorized to access this app."}')


def _show_song(song_id: int) -> dict[str, Any]:
    if song_id not in SONGS:
        raise Exception(
            f'Response status code is 409:\n{{"message":"The song with id {song_id} does not exist."}}'
        )
    return dict(SONGS[song_id])


def _show_playlist_library(access_token: str, page_index: int = 0, page_limit: int = 5) -> list[dict[str, Any]]:
    _need(access_token)
    return PLAYLISTS[page_index * page_limit : (page_index + 1) * page_limit]


def _show_transactions(access_token: str, page_index: int = 0, page_limit: int = 5) -> list[dict[str, Any]]:
    _need(access_token)
    return TRANSACTIONS[page_index * page_limit : (page_index + 1) * page_limit]


def _send_money(access_token: str, amount: float, receiver_email: str) -> dict[str, str]:
    _need(access_token)
    if amount <= 0:
        raise Exception("Response status code is 422:\namount: must be greater than 0")
    return {"message": f"Sent {amount} to {receiver_email}."}


def _search_contacts(query: str = "") -> list[dict[str, Any]]:
    return [c for c in CONTACTS if query.lower() in f"{c['first_name']} {c['last_name']}".lower()]
