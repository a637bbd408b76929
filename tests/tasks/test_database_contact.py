"""When an expired lease proves that its owner is gone."""

from app.tasks.journal import DatabaseContact

LEASE = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def in_contact(contact: DatabaseContact, clock: Clock, seconds: int) -> None:
    """The database answers every second."""
    for _ in range(seconds):
        clock.now += 1
        contact.confirm()


def test_expired_leases_are_proof_after_contact_for_as_long_as_a_lease() -> None:
    clock = Clock()
    contact = DatabaseContact(LEASE, clock)
    in_contact(contact, clock, 29)
    assert not contact.is_proof
    in_contact(contact, clock, 1)
    assert contact.is_proof


def test_a_gap_is_noticed_before_and_after_the_database_answers_again() -> None:
    clock = Clock()
    contact = DatabaseContact(LEASE, clock)
    in_contact(contact, clock, 60)
    clock.now += 9
    assert contact.is_proof, "others were able to renew their leases meanwhile"
    clock.now += 2
    assert not contact.is_proof
    contact.confirm()
    in_contact(contact, clock, 29)
    assert not contact.is_proof
    in_contact(contact, clock, 1)
    assert contact.is_proof
