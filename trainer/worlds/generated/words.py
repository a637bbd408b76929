"""What generated apps are about and what they are called: pools of words, and nouns, fields and verbs of a theme.

A pool takes every fifth word or so of each list, so that what one split is about never occurs in another. In
label kinds of themes, `*` stands for generated names of projects and teams.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from keyword import iskeyword
from random import Random
from typing import Literal, TypeAlias, TypeVar

import msgspec

Pool: TypeAlias = Literal["train", "validation", "test"]
Style: TypeAlias = Literal["snake", "camel", "kebab", "pascal"]
T = TypeVar("T")

_FIFTH: dict[int, Pool] = {3: "validation", 4: "test"}  # of each five, the others train
_WORD = re.compile(r"[A-Za-z0-9]+")


@cache
def part(words: str, pool: Pool, separator: str = ",", more: str = "") -> tuple[str, ...]:
    """The words of a list that belong to a pool, in training `more` too. Every list of five has words of each.

    >>> part("a, b, c, d, e, f", "train"), part("a, b, c, d, e, f", "test")
    (('a', 'b', 'c', 'f'), ('e',))
    """
    own = tuple(word for at, word in enumerate(split(words, separator)) if _FIFTH.get(at % 5, "train") == pool)
    return own + split(more, separator) if pool == "train" else own


@cache
def split(words: str, separator: str = ",") -> tuple[str, ...]:
    """
    >>> split("a, b"), split("")
    (('a', 'b'), ())
    """
    return tuple(word.strip() for word in words.split(separator)) if words else ()


def spell(words: str, style: Style) -> str:
    """
    >>> [spell("due date", style) for style in ("snake", "camel", "kebab", "pascal")]
    ['due_date', 'dueDate', 'due-date', 'DueDate']
    """
    parts = [word.lower() for word in _WORD.findall(words)]
    if style == "snake":
        return "_".join(parts)
    if style == "kebab":
        return "-".join(parts)
    titled = "".join(word.capitalize() for word in parts)
    return titled if style == "pascal" else titled[:1].lower() + titled[1:]


def pools_of(
    every: Iterable[T], parts: Callable[[T], Sequence[object]], held_out: Mapping[Pool, int], kept: int, name: str
) -> dict[Pool, tuple[T, ...]]:
    """As many things held out for each pool as it says, in an order that follows from `name`; the rest trains.

    What is held out recombines what is trained: more than `kept` things of training have each of its parts.
    """
    order = list(every)
    Random(name).shuffle(order)
    taught = Counter(part for each in order for part in parts(each))
    pools: dict[Pool, tuple[T, ...]] = {}
    for pool, count in held_out.items():
        chosen: list[T] = []
        for each in order:
            if len(chosen) < count and all(taught[part] > kept for part in parts(each)):
                chosen.append(each)
                taught.subtract(parts(each))
        pools[pool] = tuple(chosen)
        order = [each for each in order if each not in chosen]
    return {**pools, "train": tuple(order)}


THEMES = (
    """
    nouns: ticket, complaint, inquiry, bug report, outage, feature request, incident, escalation, callback, survey
    nouns: chat session, refund claim, feedback form, change request, problem report, help article, escalation note
    persons: assignee, requester, support agent, reporter, account manager, first responder
    labels: status = open, waiting, solved, blocked, unclaimed; priority = urgent, normal, low, critical, minor
    labels: channel = phone, web, chat, fax, kiosk; severity = fatal, major, trivial, cosmetic; squad = *
    labels: product = router, scanner, tablet, modem
    numbers: hours, response time, reply count, satisfaction, cost, downtime
    dates: opened on, due date, last contact, promised on, escalated on, resolved on
    verbs: close/closed, flag/flagged, merge/merged, triage/triaged, reopen/reopened, mute/muted, snooze/snoozed
    verbs: acknowledge/acknowledged, forward/forwarded, silence/silenced
    """,
    """
    nouns: order, invoice, quote, coupon, shipment, product, subscription, return, gift card, purchase
    nouns: contract, offer
    nouns: price list, basket, receipt, warranty, credit note, discount, voucher, payout
    persons: customer, buyer, sales rep, vendor, purchaser, cashier
    labels: category = garden, kitchen, toys, books; region = north, south, east, west
    labels: currency = euro, dollar, yen
    labels: payment method = card, cash, transfer, cheque; tier = gold, silver, bronze, platinum; promotion = *
    numbers: amount, quantity, discount rate, net price, tax, margin
    dates: ordered on, paid on, delivery date, invoice date, refunded on, expiry day
    verbs: approve/approved, refund/refunded, cancel/cancelled, charge/charged, ship/shipped, renew/renewed
    verbs: dispute/disputed, hold/held, restock/restocked, void/voided
    """,
    """
    nouns: task, milestone, sprint, meeting, proposal, review, checklist, deadline, goal, roadmap
    nouns: retrospective, agenda
    nouns: work item, user story, epic, decision, action point, status report, prototype, forecast
    persons: owner, reviewer, project lead, facilitator, sponsor, approver
    labels: project = *; stage = planned, running, done, parked; component = backend, frontend, database, website
    labels: taskforce = *; workstream = *; kind = research, design, testing, training
    numbers: effort, story points, budget, velocity, risk score, headcount
    dates: start date, end date, planned on, kickoff date, review date, created on
    verbs: finish/finished, postpone/postponed, archive/archived, pin/pinned, start/started, block/blocked
    verbs: estimate/estimated, duplicate/duplicated, sign off/signed off, prioritize/prioritized
    """,
    """
    nouns: song, album, movie, podcast, playlist, episode, photo, video clip, recording, concert, poster, audiobook
    nouns: sketch, short film, mixtape, ringtone, slideshow, remix, soundtrack, screenplay
    persons: artist, director, host, narrator, photographer, composer
    labels: genre = jazz, folk, drama, comedy, opera; language = french, german, italian, korean
    labels: mood = calm, happy, dark, dreamy; format = vinyl, tape, digital, disc; collection = *; studio = *
    numbers: rating, play count, duration, track count, bitrate, chart position
    dates: released on, added on, last played, premiere date, recorded on, published on
    verbs: like/liked, hide/hidden, download/downloaded, share/shared, skip/skipped, rate/rated, mix/mixed
    verbs: trim/trimmed, bookmark/bookmarked, caption/captioned
    """,
    """
    nouns: trip, flight, hotel booking, car rental, visa, itinerary, tour, ferry ticket, train ride, cruise
    nouns: shuttle
    nouns: excursion, boarding pass, campsite, layover, road trip, seat upgrade, travel claim, museum pass, cabin
    persons: traveler, guide, passenger, driver, pilot, travel agent
    labels: destination = oslo, lima, cairo, hanoi, quito; class = economy, business, premium, sleeper
    labels: season = spring, summer, autumn, winter; airline = skyway, aerolux, jetline, cloudair
    labels: purpose = leisure, work, family, study; party = *
    numbers: price, distance, nights, baggage weight, seat number, delay
    dates: departure date, return date, booked on, arrival date, check-in date, issued on
    verbs: book/booked, confirm/confirmed, reschedule/rescheduled, upgrade/upgraded, reimburse/reimbursed
    verbs: extend/extended, waitlist/waitlisted, print/printed, insure/insured, rebook/rebooked
    """,
    """
    nouns: parcel, pallet, truck, container, warehouse slot, delivery, crate, manifest, pickup, route
    nouns: forklift, bin
    nouns: stock item, customs form, loading dock, freight bill, packing list, consignment, label roll, cargo van
    persons: carrier, dispatcher, receiver, consignee, picker, forwarder
    labels: depot = harbor, airport, hillside, station; zone = red, blue, green, yellow
    labels: handling = fragile, frozen, heavy, loose; shift = morning, evening, night, weekend
    labels: supplier = *; transport = road, rail, sea, air
    numbers: weight, volume, mileage, stock level, axle count, temperature
    dates: shipped on, received on, packed on, inspection date, loaded on, expiry date
    verbs: dispatch/dispatched, scan/scanned, seal/sealed, weigh/weighed, unload/unloaded, reroute/rerouted
    verbs: inspect/inspected, stack/stacked, quarantine/quarantined, load/loaded
    """,
    """
    nouns: course, lesson, exam, essay, homework, lecture, seminar, thesis draft, dictation, worksheet
    nouns: workshop, grade sheet
    nouns: scholarship, tutorial, lab report, book loan, field trip, term paper, presentation, study plan
    persons: teacher, student, tutor, examiner, librarian, advisor
    labels: subject = biology, history, physics, poetry, algebra; level = beginner, advanced, expert, novice
    labels: room type = hall, laboratory, library, gym; term = first, second, third, fourth; faculty = *
    labels: campus = downtown, riverside, lakeside, hilltop
    numbers: score, page count, credits, absences, word count, attendance
    dates: submitted on, exam date, assigned on, graded on, enrolled on, term start
    verbs: grade/graded, submit/submitted, excuse/excused, publish/published, hand back/handed back, curve/curved
    verbs: enroll/enrolled, waive/waived, proofread/proofread, annotate/annotated
    """,
    """
    nouns: appointment, prescription, lab test, vaccine, diagnosis note, referral, therapy plan, checkup
    nouns: x-ray, allergy
    nouns: blood sample, operation, patient visit, treatment, medical record, diet plan, ward bed, health form
    nouns: implant
    persons: patient, doctor, nurse, therapist, surgeon, pharmacist
    labels: department = cardiology, neurology, oncology, surgery; urgency = routine, pressing, immediate, elective
    labels: clinic = *; insurance = public, private, mutual, none; method = oral, topical, injected, inhaled
    labels: outcome = stable, improved, worse, unclear
    numbers: dose, heart rate, age, waiting time, recovery days, blood pressure
    dates: admitted on, next visit, prescribed on, discharged on, tested on, birth date
    verbs: prescribe/prescribed, refer/referred, discharge/discharged, admit/admitted, bill/billed
    verbs: vaccinate/vaccinated
    verbs: sterilize/sterilized, examine/examined, monitor/monitored, relocate/relocated
    """,
    """
    nouns: server, database, backup, domain name, certificate, deployment, pipeline, container image, api key
    nouns: firewall rule
    nouns: alert, cron job, snapshot, disk, cluster, package, log stream, queue, branch, release note
    persons: maintainer, operator, committer, on-call engineer, administrator, developer
    labels: environment = staging, production, sandbox, preview; cloud region = frankfurt, virginia, tokyo, sydney
    labels: runtime = python, java, rust, golang; health = healthy, degraded, failing, unknown; cluster name = *
    labels: license = free, trial, paid, expired
    numbers: cpu load, memory use, error count, uptime, latency, disk size
    dates: deployed on, expires on, last backup, patched on, scheduled on, rotated on
    verbs: restart/restarted, rotate/rotated, scale/scaled, deploy/deployed, revoke/revoked, pause/paused
    verbs: drain/drained, tag/tagged, encrypt/encrypted, patch/patched
    """,
    """
    nouns: apartment, lease, repair, tenant file, garden plot, parking spot, meter reading, key card
    nouns: inspection, room
    nouns: house viewing, mortgage, storage unit, elevator, boiler, window, deposit, property tax, guest house
    nouns: roof
    persons: tenant, landlord, janitor, plumber, broker, electrician
    labels: district = oldtown, docklands, midtown, suburb; condition = new, worn, damaged, restored
    labels: heating = gas, solar, electric, wood; usage = home, office, shop, storage; building = *
    labels: view = park, street, sea, courtyard
    numbers: rent, area, floor, energy use, room count, deposit sum
    dates: move-in date, lease end, listed on, repaired on, inspected on, built on
    verbs: rent out/rented out, repair/repaired, advertise/advertised, paint/painted, evict/evicted
    verbs: furnish/furnished
    verbs: renovate/renovated, clean/cleaned, lock/locked, appraise/appraised
    """,
    """
    nouns: mail, note, contact, reminder, letter, diary entry, newsletter, recipe, voice memo, wish, postcard
    nouns: message
    nouns: draft, bookmark, invitation, birthday, shopping list, loyalty card, greeting, souvenir
    persons: sender, author, recipient, friend, writer, organizer
    labels: folder = inbox, travel, bills, hobbies, clubs; topic = cooking, chess, sailing, gardening
    labels: tone = formal, funny, warm, polite; notebook = *; device = laptop, radio, watch, camera
    labels: circle = relatives, neighbors, colleagues, classmates
    numbers: size, length, attachment count, importance, calories, reading time
    dates: sent on, received at, written on, remind on, edited on, saved on
    verbs: star/starred, delete/deleted, label/labelled, pin up/pinned up, answer/answered, translate/translated
    verbs: unsubscribe/unsubscribed, store/stored, print out/printed out, copy/copied
    """,
)

APPS = """
helix, nimbus, corvid, tandem, larkspur, quarry, beacon, meridian, opal, juniper, saffron, basalt, ember, fathom,
gantry, harvest, inkwell, jetty, kestrel, lumen, magpie, nectar, osprey, pebble, quill, rivet, sextant, timber,
umbra, vellum, willow, xenon, yarrow, zephyr, alcove, bramble, cobalt, dovetail, estuary, falcon, garnet, hollow,
indigo, jasper, keystone, lantern, mosaic, nomad, orchard, prism, quartz, raven, summit, thistle, upland, verve,
walnut, yonder, zenith, anvil, birch, cinder, delta, elm, flint, grove, harbor, iris, jade, kiln, lotus, maple,
nova, onyx, pine, quest, reef, slate, tide, vista, acorn, bolt, crest, dune, echo, fern, glade, haven, isle, juno,
kite, loom, moss, nook, oasis, plume, rook, spire, trove
"""

DIRECTORIES = "roster, people, staffbook, teamlist, crewbase, whoswho, orgchart, phonebook, members, rollcall"

DISTRACTORS = """
color, notes, locale, revision, checksum, source, external ref, etag, visibility, format version, archived flag,
sort key, thumbnail, summary, shortcut, weight class, origin system, sync state, batch code, internal hint
"""

MORE_DISTRACTORS = """
created by, updated at, tenant ref, slug, hash, language code, template, parent ref, position code, badge, flags,
remarks, description, nickname code, timezone, currency code, unit code, serial, lot, shelf, barcode, alias,
theme, icon name, short code, legacy id, crc, score band, priority hint, region code, storage class, mime,
encoding, retention, policy ref, cost center, ledger code, audit mark, risk band, group ref, variant, edition,
mirror, endpoint
"""
"""The last list is for training alone, so that names are read, not known by heart."""

GYM_WORDS: dict[str, tuple[str, ...]] = {
    "login": ("log in", "sign in", "create session", "authenticate", "open session"),
    "list": ("list", "search", "fetch", "browse", "find"),
    "show": ("get", "show", "read", "view"),
    "update": ("update", "edit", "change"),
    "token": ("token", "access token", "session", "session key"),
    "header": ("X-Api-Key", "X-Token", "X-Session", "access_token", "X-Auth-Token"),
    "page": ("page", "page number"),
    "offset": ("offset", "start", "skip"),
    "limit": ("limit", "size", "per page"),
    "cursor": ("cursor", "after", "page token"),
    "next": ("next cursor", "next", "next page"),
    "links": ("links", "paging"),
    "data": ("items", "results", "data", "entries"),
    "outer": ("response", "result", "payload"),
    "group": ("attributes", "details", "fields", "properties"),
    "inner": ("name", "full name"),
    "ok": ("ok", "success"),
    "error": ("error", "message"),
}

MORE_GYM_WORDS: dict[str, tuple[str, ...]] = {
    "login": ("start session", "get token", "obtain token", "request access", "connect", "login"),
    "list": ("query", "retrieve", "get all", "read", "enumerate", "collect", "show all"),
    "show": ("fetch", "retrieve", "look up", "describe", "open"),
    "update": ("modify", "set", "amend", "revise", "save", "alter"),
    "token": ("auth token", "bearer", "session id", "api token", "credential", "secret", "jwt"),
    "header": ("X-Access-Token", "X-Session-Token", "Api-Key", "X-Key", "api_key", "auth_token"),
    "page": ("page index", "page no", "p", "current page"),
    "offset": ("from index", "begin", "start at", "position"),
    "limit": ("count", "page size", "max results", "top", "take", "rows"),
    "cursor": ("continuation", "marker", "starting after", "cursor token"),
    "next": ("next token", "continue from", "more", "next marker"),
    "links": ("navigation", "pages", "link"),
    "data": ("records", "rows", "content", "values", "objects", "hits", "elements", "list", "found"),
    "outer": ("body", "answer", "envelope", "reply", "output"),
    "group": ("values", "info", "data", "spec", "body", "record"),
    "inner": ("display", "text", "person name", "title", "label"),
    "ok": ("succeeded", "accepted", "done", "completed"),
    "error": ("reason", "detail", "problem", "fault", "msg"),
}
"""For training alone, so that names are read, not known by heart."""

CRUD_WORDS: dict[str, tuple[str, ...]] = {
    "list": ("list", "get all", "search", "fetch", "get", "browse", "find"),
    "show": ("get", "show", "read", "view", "fetch"),
    "create": ("create", "add", "new", "post", "register"),
    "update": ("update", "edit", "change", "modify", "set"),
    "delete": ("delete", "remove", "drop", "destroy"),
    "info": ("get system info", "show status", "server version", "get about", "read health"),
    "version": ("version", "release", "build", "server version"),
    "id": ("id", "uuid", "key", "id", "uid"),
    "title": ("title", "name", "title", "display name", "subject"),
    "link": ("url", "link", "url", "address", "web page"),
    "data": ("items", "results", "data", "entries"),
    "group": ("attributes", "details", "fields", "properties"),
    "page": ("page", "page number"),
    "header": ("X-Api-Key", "X-Token", "access_token", "X-Auth-Token"),
    "error": ("error", "message", "detail"),
}
OTHERS = (
    "GET {noun} history", "POST import {nouns}", "POST export {nouns}", "GET {noun} comments",
    "POST {noun} share link", "GET {nouns} settings", "GET {nouns} report", "POST {nouns} sync",
    "GET {noun} permissions", "GET {nouns} feed",
)  # fmt: skip
OPTIONS = ("sort by", "order", "verbose", "with archived", "locale", "expand")  # of lists
SPARE_FIELDS = (
    "proxy", "time zone", "interval", "retries", "webhook", "http verb", "headers", "batch size", "footer",
    "silent", "priority rank", "max length", "cc list", "external key", "icon", "folder path", "sort index",
    "owner group",
    *(f"{what} {part}" for what in ("alert", "sync", "cache", "layout", "export", "quota")
      for part in ("body", "format", "mode", "limit", "enabled", "threshold", "text", "ids")),
)  # fmt: skip
STATUS = (
    "queue size", "workers", "region", "disk free", "new version available", "base url", "users", "mode",
    "cluster", "log level",
)  # fmt: skip
QUALIFIERS = (
    "page", "web", "team", "shared", "daily", "project", "customer", "site", "user", "group", "service", "saved",
)  # fmt: skip
TAKEN = frozenset(word for role in ("list", "show", "create", "update", "delete") for word in CRUD_WORDS[role])
"""Verbs for what every collection can do."""


_COMPOSED = 0.8
_LABELS = 5  # values of a label that are names of projects
_PROGRESS = "state, progress, current state, work state, handling state"
_INITIAL = "pending, new, untouched, raw, unprocessed"
_STAGES = "state, status, stage, phase, step, level, standing, position"
_QUALIFIERS = """
review, order, record, process, item, internal, overall, flow, case, job, entry, desk, request, service, office,
team, queue, filing, main, last known
"""
_MORE_INITIAL = """
fresh, received, unread, unhandled, idle, todo, queued, incoming, logged, outstanding, unassigned, registered,
entered, not started, unchecked, to be seen, undecided
"""
_DIRECTORY = """
    nouns: member, employee, contact, colleague, teammate
    persons: name, full name, known as, display name, nickname
    labels: team = *; department = *; division = *; crew = *; guild = *
    numbers: desk number, extension, staff number, badge number, seat
    dates: joined on, hired on, start day, joining date, first day
    verbs: invite/invited, promote/promoted, notify/notified, retire/retired, greet/greeted
"""
_MORE_DIRECTORY = """
    nouns: person, staff member, coworker, associate, representative, volunteer, technician, consultant, worker
    nouns: specialist, delegate, crew member, profile, user, account, resident, trainee, partner, analyst, clerk
    persons: legal name, real name, complete name, contact name, listed as, profile name, preferred name, person
    labels: unit = *; chapter = *; cohort = *; group = *; section = *; cell = *; pod = *; tribe = *
    labels: wing = *; corps = *; bureau = *; workgroup = *; committee = *; business unit = *; home base = *
    numbers: locker number, room number, seniority, years of service, payroll number, vacation days, grade level
    dates: employed since, contract start, entry date, member since, last review, account opened
"""
_COINED = 0.7
_WORDS = frozenset(re.findall(r"[a-z]+", f"{APPS} {DIRECTORIES} {' '.join(THEMES)}"))
_ONSETS = "b, br, c, ch, cl, d, dr, f, fl, g, gr, h, j, k, l, m, n, p, pl, pr, r, s, sh, st, t, th, tr, v, w, z"
_VOWELS = "a, e, i, o, u, y, ai, au, ea, ee, ia, io, oo, ou"
_CODAS = ", , , l, ll, m, n, nd, ng, r, rk, rn, s, ss, st, t, th, x"
_ENDINGS = "hub, desk, ly, base, flow, kit, works, _app, _service, box, cloud, track"
_CONSONANTS = "bcdfghjklmnpqrstvwxz"
_FIRST = """
noor, priya, jean, luc, mateus, ines, oskar, yuki, amara, tobias, leila, ciaran, svetlana, dmitri, chloe, rafael,
hana, kwame, astrid, bjorn, carmen, diego, elif, farid, greta, hamza, imani, jonas, katya, lars, mei, nadia, olu,
pedro, qadir, rosa, samir, tariq, ursula, vera, wanda, xavier, yara, zainab, aisha, boris, celeste, dario, esther,
felix, gwen, hector, ilse, jamal, keiko, lorenzo, mina, nikolai, odette, pavel, renata, stefan, thea, umar,
viktor, wilma, yusuf, zoltan, abena, bruno, clara, dalia, emil, freya, goran, hilde, ivo, jana, kofi, lucia,
marek, nils, oriana, petra, rashid, selma, tove, ulrich, valeria, wouter, ximena, yvette, zofia, anselm, beatriz,
cyrus, devika, enzo, fatou, gideon, helga, isabel, joao, karim, liv, mirela, nestor, otto, paloma, remy, sunita,
timur, uma, vito, winston, yolanda, zeynep, alba, benoit, camille
"""
_LAST = """
weiss, okafor, haddad, raman, tanaka, lindqvist, moreau, kowalski, silva, novak, jensen, mbeki, castillo, petrov,
nguyen, ferrari, schmidt, yilmaz, hansen, dubois, santos, ivanova, keller, nakamura, olsen, pereira, rossi,
suzuki, torres, varga, wagner, zhang, abebe, bauer, chaudhry, delgado, eriksen, fischer, gupta, horvat, ibrahim,
jankovic, kaplan, laurent, mensah, nilsson, ortega, popescu, quispe, rahman, sokolov, takahashi, usman, vasquez,
watanabe, xu, yamada, zimmer, adeyemi, bianchi, cohen, diallo, engel, fontaine, georgiou, hoffmann, iqbal,
johansson, kim, lefebvre, marino, nowak, oyelaran, papadakis, qureshi, romero, sorensen, tran, ueda, vogel, weber,
ximenes, young, zeller, arslan, becker, costa, dimitrov, el-amin, farkas, garcia, hakimi, ito, jovanovic, khan,
lopez, mancini, nakata, ozturk, park, richter, sharma, toivonen, urban, volkov, wong
"""
_IRISH = (
    "brien, connor, neill, malley, hara, leary, shea, dowd, keefe, rourke, grady, sullivan, donnell, reilly, dwyer"
)
_ADJECTIVES = """
blue, silent, golden, rapid, hidden, crimson, lunar, frozen, brave, velvet, amber, northern, hollow, bright, iron,
gentle, distant, copper, wild, quiet, silver, misty, royal, solar, emerald, ancient, swift, violet, rustic, polar
"""
_THINGS = """
heron, apollo, lynx, canyon, comet, harbor, falcon, glacier, phoenix, orchid, badger, cascade, meadow, titan,
otter, summit, raven, delta, bison, lagoon, atlas, willow, cobra, ridge, mammoth, ember, pelican, fjord, jaguar,
nebula
"""


class Verb(msgspec.Struct, frozen=True):
    base: str
    done: str  # past participle: also the state of an item to which it was done


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of items, each with a person, a label, a number, a date and a state. Words as in prose."""

    noun: str
    person: str
    label: str
    values: tuple[str, ...]  # of the label
    number: str
    date: str
    state: str  # the field that holds the state
    initial: str  # the state of an item to which nothing was done
    verbs: tuple[Verb, ...]
    distractors: tuple[str, ...]  # fields that no task asks for

    @property
    def nouns(self) -> str:
        return plural(self.noun)


def plural(noun: str) -> str:
    """
    >>> [plural(noun) for noun in ("ticket", "warranty", "survey", "price list", "mailbox", "crash", "diagnosis")]
    ['tickets', 'warranties', 'surveys', 'price lists', 'mailboxes', 'crashes', 'diagnoses']
    """
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun.endswith("sis"):
        return f"{noun[:-2]}es"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def draw_domain(pool: Pool, rng: Random, besides: Domain | None = None) -> Domain:
    """A domain of one theme; its nouns are not those of `besides`."""
    return _domain(_theme(rng.choice(THEMES)), pool, rng, besides=besides)


def draw_directory(pool: Pool, rng: Random) -> Domain:
    """The domain of an app that knows who is in which team."""
    return _domain(_theme(_DIRECTORY), pool, rng, more=_theme(_MORE_DIRECTORY))


def other_state_field(domain: Domain, rng: Random) -> str:
    """A name for the field of the state that the makers of the app did not choose."""
    while (other := _state_field("train", rng)) in (domain.state, domain.label, domain.number):
        pass
    return other


def _domain(
    theme: dict[str, str],
    pool: Pool,
    rng: Random,
    *,
    besides: Domain | None = None,
    more: dict[str, str] | None = None,
) -> Domain:
    """`more` has words for training alone."""

    def words(kind: str, separator: str = ",") -> tuple[str, ...]:
        return part(theme[kind], pool, separator, (more or {}).get(kind, ""))

    nouns = [noun for noun in words("nouns") if besides is None or noun != besides.noun]
    label, _, values = rng.choice(words("labels", ";")).partition(" = ")
    names = tuple(projects(pool, _LABELS, rng))
    verbs = rng.sample(words("verbs"), min(3, len(words("verbs"))))
    distractors = part(DISTRACTORS, pool, more=MORE_DISTRACTORS)
    return Domain(
        noun=rng.choice(nouns),
        person=rng.choice(words("persons")),
        label=label,
        values=names if values == "*" else tuple(values.split(", ")),
        number=rng.choice(words("numbers")),
        date=rng.choice(words("dates")),
        state=_state_field(pool, rng),
        initial=rng.choice(part(_INITIAL, pool, more=_MORE_INITIAL)),
        verbs=tuple(Verb(*verb.split("/")) for verb in verbs),
        distractors=tuple(rng.sample(distractors, rng.randint(0, 2))),
    )


def _state_field(pool: Pool, rng: Random) -> str:
    """In training one of hundreds of names: which field has the state is to be read from its values."""
    if pool == "train" and rng.random() < _COMPOSED:
        return f"{rng.choice(split(_QUALIFIERS))} {rng.choice(split(_STAGES))}"
    return rng.choice(part(_PROGRESS, pool))


@cache
def _theme(text: str) -> dict[str, str]:
    """The lists of a theme; those of several lines are joined."""
    lists: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        kind, _, words = line.strip().partition(": ")
        lists.setdefault(kind, []).append(words)
    return {kind: ("; " if kind == "labels" else ", ").join(words) for kind, words in lists.items()}


def people(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different people, written in various ways; no name is a part of another."""
    names: list[str] = []
    while len(names) < count:
        name = _person(pool, rng)
        if not any(name.lower() in other.lower() or other.lower() in name.lower() for other in names):
            names.append(name)
    return names


def projects(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different names of projects and teams."""
    names: list[str] = []
    while len(names) < count:
        name = _project(pool, rng)
        if name.lower() not in [other.lower() for other in names]:
            names.append(name)
    return names


def _person(pool: Pool, rng: Random) -> str:
    first, second = rng.sample(part(_FIRST, pool), 2)
    last, irish = rng.choice(part(_LAST, pool)), rng.choice(part(_IRISH, pool)).title()
    whole = last.title()
    shapes = (
        first,
        first.title(),
        f"{first.title()} {whole}",
        f"{first.title()} {whole}",
        f"{rng.choice(('Dr.', 'Ms.', 'Mr.', 'Prof.'))} {whole}",
        f"{first}-{second}",
        f"{first.title()}-{second.title()} {whole}",
        f"{first[0]}.{last}",
        f"O'{irish}",
        f"{first.title()} O'{irish}",
        f"{first.title()} {second[0].upper()}. {whole}",
        f"{first}_{last}",
    )
    return rng.choice(shapes)


def _project(pool: Pool, rng: Random) -> str:
    adjective, thing = rng.choice(part(_ADJECTIVES, pool)), rng.choice(part(_THINGS, pool))
    number = rng.randrange(2, 99)
    shapes = (
        f"{adjective.title()} {thing.title()}",
        f"{adjective}-{thing}",
        f"{thing}-{number}",
        f"{thing.title()} {number}",
        f"{adjective.title()}{thing.title()}",
        thing.title(),
    )
    return rng.choice(shapes)


def draw_names(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different names."""
    names = rng.sample(part(APPS, pool), count)
    return names if pool != "train" else _mixed(names, rng)


def directory_name(pool: Pool, rng: Random) -> str:
    name = rng.choice(part(DIRECTORIES, pool))
    return name if pool != "train" else _mixed([name], rng)[0]


def coined_name(rng: Random) -> str:
    """A name that could be a product's, and is no word of the gym."""
    shape = rng.randrange(8)
    if shape == 0:
        name = "".join(rng.sample(_CONSONANTS, rng.choice((3, 4))))
    elif shape == 1:
        name = f"{rng.choice(part(APPS, 'train'))}{rng.choice(part(APPS, 'train'))}"
    elif shape == 2:
        name = f"{rng.choice(part(APPS, 'train'))}{_pick(_ENDINGS, rng)}"
    else:
        syllables = (_pick(_ONSETS, rng) + _pick(_VOWELS, rng) for _ in range(rng.choice((2, 2, 3))))
        name = f"{''.join(syllables)}{_pick(_CODAS, rng)}"
    return coined_name(rng) if name in _WORDS or iskeyword(name) else name


def _mixed(names: list[str], rng: Random) -> list[str]:
    """The names, most of them replaced by coined ones."""
    mixed: list[str] = []
    for name in names:
        chosen = coined_name(rng) if rng.random() < _COINED else name
        mixed.append(name if chosen in mixed else chosen)
    return mixed


def _pick(listed: str, rng: Random) -> str:
    return rng.choice(listed.split(", "))
