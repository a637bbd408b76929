"""What strangers' APIs are about: domains, each with its resources and their fields. Pure.

A line is a domain, or `resource: fields` of the one before. Of a field, `#` is a whole number, `#.` any number,
`@` a date, `?` a flag, `*` a list of texts, `=a/b` a choice, `>x` a link to another resource of the domain, and
without any it is a text.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, Literal, TypeAlias

import msgspec

from trainer.environment import Split

FieldKind: TypeAlias = Literal["text", "whole", "number", "date", "flag", "texts", "choice", "link"]

_MARKS: Final[tuple[tuple[str, FieldKind], ...]] = (
    ("#.", "number"), ("#", "whole"), ("@", "date"), ("?", "flag"), ("*", "texts"),
)  # fmt: skip
_HELD_OUT: Final[dict[int, Split]] = {3: "validation", 5: "test"}  # of each six, the others train


class Field(msgspec.Struct, frozen=True):
    """A field in the words of prose. `choices` are those of a choice; a link has the words of its target."""

    words: str
    kind: FieldKind
    choices: tuple[str, ...] = ()


class Resource(msgspec.Struct, frozen=True):
    noun: str
    fields: tuple[Field, ...]

    @property
    def links(self) -> list[Field]:
        return [each for each in self.fields if each.kind == "link"]


class Domain(msgspec.Struct, frozen=True):
    name: str
    resources: tuple[Resource, ...]


@cache
def domains(split: Split) -> tuple[Domain, ...]:
    """Those of a split; no other has one of their resources."""
    every = _every()
    return tuple(each for at, each in enumerate(every) if _HELD_OUT.get(at % 6, "train") == split)


@cache
def administration() -> tuple[Resource, ...]:
    """What APIs have besides, whatever they are about."""
    return tuple(_resource(line) for line in _ADMINISTRATION.strip().splitlines())


def _every() -> list[Domain]:
    found: list[Domain] = []
    for line in _DOMAINS.strip().splitlines():
        if line.startswith(" "):
            found[-1] = Domain(found[-1].name, (*found[-1].resources, _resource(line.strip())))
        else:
            found.append(Domain(line, ()))
    return found


def _resource(text: str) -> Resource:
    noun, _, fields = text.partition(": ")
    return Resource(noun, tuple(map(read_field, fields.split(", "))))


def read_field(text: str) -> Field:
    """
    >>> read_field("pages#"), read_field(">shelf").kind, read_field("wing=north/south").choices
    (Field(words='pages', kind='whole', choices=()), 'link', ('north', 'south'))
    """
    if text.startswith(">"):
        return Field(text[1:], "link")
    words, _, choices = text.partition("=")
    if choices:
        return Field(words, "choice", tuple(choices.split("/")))
    return next((Field(words.removesuffix(mark), kind) for mark, kind in _MARKS if words.endswith(mark)),
                Field(words, "text"))  # fmt: skip


def linked(resource: Resource, every: Sequence[Resource]) -> Resource:
    """The resource without links to what is not there."""
    nouns = {each.noun for each in every}
    kept = tuple(each for each in resource.fields if each.kind != "link" or each.words in nouns)
    return Resource(resource.noun, kept)


_DOMAINS: Final = """
library
    book: title, author, isbn, pages#, publication date@, genre=novel/essay/poetry/biography, available?, >shelf
    shelf: label, floor#, wing=north/south/east
    loan: borrower, due date@, renewals#, overdue?, status=open/returned/lost, >book
    reader: full name, email, joined on@, blocked?
brewing
    brew: name, style=lager/stout/ale/porter, gravity#., started on@, bottled?, >kettle
    kettle: label, capacity#, material=steel/copper, clean?
    hop: name, origin, acid content#., aroma*, in stock?
    tasting: title, score#, held on@, verdict=poor/fair/good, >brew
beekeeping
    hive: name, frames#, installation date@, queen marked?, strength=weak/normal/strong, >apiary
    apiary: name, address, altitude#, fenced?
    harvest: title, weight#., collected on@, quality=raw/filtered/creamed, >hive
    treatment: remedy, dose#., given on@, finished?, >hive
shipping
    parcel: title, weight#., recipient, status=pending/shipped/delivered/returned, fragile?, value#., >depot
    depot: name, city, docks#, cold storage?
    courier: full name, phone, vehicle=van/bike/truck, active?, rating#.
    route: name, distance#., departure date@, stops#, >courier
veterinary
    animal: name, species=dog/cat/rabbit/horse, weight#., birth date@, vaccinated?, >keeper
    keeper: full name, email, phone, newsletter?
    visit: reason, visit date@, fee#., urgency=routine/urgent/emergency, paid?, >animal
    vaccine: name, manufacturer, doses#, refrigerated?
cinema
    film: title, director, runtime#, release date@, rating=general/teen/adult, subtitled?, cast*
    screening: title, start date@, seats left#, sold out?, >film, >hall
    hall: name, seats#, projector=laser/xenon/led
    voucher: code name, worth#., expiry date@, redeemed?
gardening
    plant: name, latin name, height#., planting date@, light=shade/partial/full, perennial?, >bed
    bed: name, area#., soil=clay/sand/loam, irrigated?
    chore: title, due date@, minutes#, done?, priority=low/medium/high, >bed
    seed: variety, supplier, packets#, organic?
payroll
    employee: full name, position, salary#., hire date@, contract=permanent/temporary/intern, remote?, >office
    office: name, city, desks#, accessible?
    payslip: title, net pay#., issue date@, approved?, >employee
    absence: reason, start date@, days#, status=requested/approved/rejected, >employee
astronomy
    telescope: name, aperture#., mount=alt/equatorial/fork, motorized?, >observatory
    observatory: name, country, altitude#, open to visitors?
    sighting: title, object name, magnitude#., sighting date@, confirmed?, >telescope
    comet: name, discoverer, period#., visible?
restaurant
    dish: name, price#., course=starter/main/dessert, vegetarian?, calories#, allergens*
    booking: guest name, guests#, booking date@, status=requested/confirmed/cancelled, outdoor?, >dining table
    dining table: label, seats#, area=indoor/terrace/bar
    waiter: full name, phone, shifts#, on duty?
fitness
    workout: title, duration#, performed on@, intensity=easy/moderate/hard, completed?, >athlete
    athlete: full name, email, weight#., premium?, level=novice/advanced/elite
    exercise: name, muscle group=arms/legs/back/core, repetitions#, needs equipment?
    challenge: title, goal#, end date@, public?, participants#
insurance
    claim: title, amount#., filing date@, status=open/approved/rejected/paid, suspicious?, >contract
    contract: holder, premium#., start date@, coverage=basic/extended/full, renewed?
    adjuster: full name, region, cases#, certified?
    assessment: summary, damage#., assessment date@, >claim, >adjuster
museum
    exhibit: title, artist, year made#, insured value#., condition=good/fair/poor, on display?, >gallery
    gallery: name, floor#, theme=modern/classic/ancient, climate controlled?
    tour: title, guide name, start date@, places#, language=english/french/german, cancelled?
    donor: full name, email, total given#., anonymous?
parking
    garage: name, address, spaces#, hourly rate#., open at night?
    vehicle: plate, make, color, length#., electric?, kind=car/van/motorcycle
    permit: holder, issue date@, expiry date@, zone=inner/middle/outer, revoked?, >vehicle
    fine: reason, amount#., issue date@, status=unpaid/paid/contested, >vehicle
podcasting
    show: title, host name, language=english/spanish/italian, explicit?, followers#
    episode: title, summary, length#, publication date@, status=draft/scheduled/published, downloads#, >show
    sponsor: name, contact email, budget#., active?
    segment: title, begins at second#, kind=intro/interview/advert, >episode
farming
    field: name, area#., crop=wheat/barley/maize/oats, irrigated?, sown on@
    tractor: model, horsepower#, serviced on@, leased?, fuel=diesel/electric/hydrogen
    barn: name, capacity#, heated?
    cow: name, breed, weight#., birth date@, healthy?, >barn
real estate
    property: title, address, price#., rooms#, listing date@, status=listed/reserved/sold, furnished?
    viewing: visitor, event date@, outcome=interested/undecided/declined, confirmed?, >property, >agent
    agent: full name, email, deals#, commission#., available?
    offer: bidder, amount#., made on@, accepted?, >property
ticketing
    ticket: subject, requester, priority=low/normal/high/critical, opening date@, closed?, hours spent#., >board
    board: name, owner name, archived?, column count#
    comment: text, author, likes#, pinned?, >ticket
    sprint: name, start date@, points#, state=planned/active/completed
music studio
    track: title, composer, tempo#, recording date@, mixed?, key signature=major/minor, >session
    session: name, engineer, hours#., held on@, status=booked/running/finished
    instrument: name, maker, value#., tuned?, family=strings/brass/percussion
    microphone: model, pattern=cardioid/omni/figure8, price#., in repair?
weather
    station: name, country, elevation#, online?, kind=coastal/mountain/urban
    reading: title, temperature#., humidity#, taken on@, verified?, >station
    sensor: model, accuracy#., calibrated on@, faulty?, >station
    warning: headline, severity=minor/moderate/severe, issue date@, lifted?
bakery
    bread: name, flour=rye/wheat/spelt, weight#, price#., sliced?, allergens*
    oven: label, temperature#, racks#, in use?
    batch: title, baked on@, loaves#, status=rising/baking/cooled, >bread, >oven
    standing order: customer, quantity#, weekday=monday/wednesday/saturday, paused?, >bread
election
    candidate: full name, party, votes#, incumbent?, list number#
    precinct: name, registered voters#, district=north/south/west, counted?
    ballot: title, cast on@, valid?, kind=mail/booth/early, >precinct
    observer: full name, organization, accredited?, arrival date@, >precinct
photography
    photo: title, photographer, width#, taken on@, license=free/editorial/commercial, featured?, moods*, >album
    album: name, description, cover color, private?
    camera: model, shutter count#, aperture#., rented?, sensor size=full/crop/medium
    print order: title, copies#, order date@, paper=matte/glossy/canvas, dispatched?, >photo
school
    course: title, teacher, credits#, start date@, level=beginner/intermediate/expert, full?
    pupil: full name, email, year#, enrollment date@, scholarship?
    assignment: title, due date@, max points#, graded?, >course
    grade: remark, points#., given on@, passed?, >pupil, >assignment
aquarium
    tank: name, volume#, water=fresh/salt/brackish, heated?, set up on@
    fish: name, species, length#., price#., healthy?, temperament=calm/shy/aggressive, >tank
    water test: title, acidity#., measured on@, acceptable?, >tank
    feed: brand, grams left#, vegetarian?
hosting
    server: hostname, memory#, cores#, region=europe/america/asia, started?, monthly cost#., >cluster
    cluster: name, nodes#, healthy?, tier=dev/staging/production
    backup: title, size#., taken on@, encrypted?, status=running/completed/failed, >server
    certificate: common name, issuer, expiry date@, trusted?
wine cellar
    bottle: name, vintage#, price#., region, sweetness=dry/medium/sweet, opened?, >rack
    rack: label, rows#, temperature#., locked?
    vineyard: name, country, hectares#., organic?
    pairing: title, dish name, score#, recommended?, >bottle
chess club
    player: full name, elo#, joined on@, title rank=none/master/grandmaster, active?
    match: title, played on@, moves#, result=white/black/draw, rated?
    tournament: name, venue, rounds#, start date@, status=planned/running/finished
    opening line: name, code name, popularity#, gambit?
laboratory
    specimen: label, volume#., collected on@, kind=blood/saliva/tissue, contaminated?, >freezer
    freezer: name, temperature#, shelves#, alarmed?
    assay: title, technician, started on@, status=queued/running/completed/failed, replicates#, >specimen
    reagent: name, lot number, milliliters#., expiry date@, hazardous?
car workshop
    repair: title, mechanic, cost#., received on@, status=waiting/started/completed, under warranty?, >automobile
    automobile: plate, model, mileage#, built in year#, fuel type=petrol/diesel/electric
    spare part: name, part number, stock#, price#., original?
    lift: label, max load#, occupied?
publishing
    manuscript: title, writer, words#, submission date@, stage=received/accepted/rejected/printed, urgent?, topics*
    editor: full name, email, specialty=fiction/science/cooking, workload#, on leave?
    imprint: name, city, founded in year#, active?
    royalty: title, amount#., payment date@, paid?, >manuscript
theater
    play: title, playwright, acts#, genre=tragedy/comedy/musical, premiered?
    rehearsal: title, room name, start date@, length#, mandatory?, >play
    costume: name, size=small/medium/large, rental fee#., cleaned?, >play
    actor: full name, stage name, roles#, understudy?
recycling
    container: label, liters#, material=glass/paper/plastic/metal, emptied on@, damaged?, >collection point
    collection point: name, address, capacity#, lit?
    pickup: title, driver name, planned date@, tons#., status=planned/underway/completed, >collection point
    complaint: subject, reporter, filing date@, resolved?, >collection point
banking
    account: name, iban label, balance#., opening date@, kind=checking/savings/loan, frozen?
    transfer: purpose, amount#., execution date@, status=pending/executed/failed, recurring?, >account
    payee: full name, country, verified?, transfers#
    standing payment: title, amount#., next due@, interval=weekly/monthly/yearly, paused?, >account
radio
    broadcast: title, presenter, minutes#, air date@, format=live/recorded/repeat, syndicated?
    jingle: name, seconds#, mood=happy/calm/dramatic, retired?
    listener request: song title, listener name, received on@, played?, >broadcast
    transmitter: name, power#, frequency#., on air?
scouting
    troop: name, town, founded on@, members#, active?
    badge: name, difficulty=easy/medium/hard, points#, outdoor?
    camp: title, location, start date@, cost#., full?, >troop
    scout: full name, age#, joined on@, rank=rookie/explorer/leader, >troop
retail
    product: name, sku label, price#., stock#, status=draft/active/discontinued, on sale?, materials*, >brand
    brand: name, country, website, featured?
    purchase: buyer, total#., order date@, state=new/paid/shipped/cancelled, gift?
    coupon: code name, discount#, valid until@, enabled?
hotel
    room: name, floor#, nightly rate#., beds#, view=sea/garden/street, occupied?
    reservation: guest, arrival date@, nights#, status=pending/confirmed/cancelled, breakfast?, >room
    housekeeper: full name, phone, rooms per day#, night shift?
    minibar item: name, price#., stock#, alcoholic?
robotics
    robot: name, model, battery#, firmware, mode=idle/working/charging, enabled?, >zone
    zone: name, area#., hazard=none/low/high, restricted?
    mission: title, distance#., started on@, status=queued/running/completed/aborted, >robot
    gripper: name, max force#., kind=suction/claw/magnetic, worn?
forestry
    stand: name, hectares#., species=pine/oak/beech/spruce, planted in year#, protected?
    ranger: full name, phone, experience#, armed?, >stand
    felling: title, cubic meters#., felled on@, approved?, >stand
    trail: name, length#., difficulty=easy/moderate/hard, closed?
recruiting
    vacancy: title, department, salary#., posting date@, status=open/closed/filled, remote?, skills*
    applicant: full name, email, experience#, applied on@, stage=applied/interviewed/hired/rejected, >vacancy
    interview: title, interviewer, planned date@, score#, cancelled?, >applicant
    referral: referrer, bonus#., referred on@, paid out?, >applicant
dental
    filling: tooth name, material=composite/ceramic/gold, placed on@, cost#., painful?, >dental patient
    dental patient: full name, birthday@, phone, anxious?, missed visits#
    dentist: full name, chair number#, specialty=general/surgery/braces, retired?
    reminder: text, send on@, sent?, channel=mail/phone/sms, >dental patient
cycling
    bicycle: name, frame size#, kind=road/mountain/city, weight#., stolen?
    ride: title, distance#., ride date@, elevation gain#, private?, >bicycle
    component: name, maker, price#., installation date@, worn out?, >bicycle
    meetup: title, organizer, meeting date@, pace=slow/medium/fast, cancelled?
ferry
    vessel: name, length#., cabins#, built in year#, status=docked/sailing/retired, hybrid?
    sailing: title, departure date@, passengers#, fare#., delayed?, >vessel, >port
    port: name, country, berths#, customs?
    crew member: full name, duty=deck/engine/galley, months aboard#, certified?, >vessel
translation
    glossary: name, source language=english/german/japanese, terms#, shared?
    term: phrase, rendering, uses#, approved?, >glossary
    translator: full name, email, rate per word#., available?, >glossary
    translation job: title, words#, deadline@, status=open/assigned/delivered, rush?, >translator
charity
    campaign: title, target amount#., raised amount#., end date@, status=draft/active/closed, featured?
    donation: donor name, amount#., received on@, anonymous?, method=card/transfer/cash, >campaign
    volunteer: full name, email, hours#, background checked?
    grant: title, amount#., decided on@, awarded?, >campaign
warehouse
    pallet: label, weight#., stored on@, stackable?, contents*, >aisle
    aisle: name, levels#, temperature zone=ambient/chilled/frozen, blocked?
    forklift: name, hours#, fuel kind=electric/gas, out of service?
    stocktake: title, counted on@, differences#, status=planned/counting/completed, >aisle
dancing
    dance class: title, instructor, style=salsa/tango/ballet/swing, price#., start date@, sold out?
    dancer: full name, email, lessons#, member?
    studio: name, area#., mirrors?, floor type=wood/vinyl
    recital: title, held on@, audience#, rehearsed?, >dance class
genealogy
    ancestor: full name, birth year#, birthplace, died on@, verified?, side=maternal/paternal/unknown, >family tree
    family tree: name, generations#, shared?, started on@
    document scan: title, kind=birth/marriage/census, scanned on@, pages#, legible?, >ancestor
    dna match: name, shared segments#, reviewed?, >family tree
toys
    toy: name, age from#, price#., category=puzzle/doll/vehicle/game, recalled?, >manufacturer
    manufacturer: name, country, founded in year#, certified?
    recall notice: title, issue date@, units#, hazard level=low/medium/high, ended?, >toy
    toy review: headline, stars#, written on@, helpful votes#, hidden?, >toy
energy
    meter: label, serial label, last value#., installation date@, kind=power/gas/water, smart?, >household
    household: name, address, occupants#, prepaid?
    tariff: name, unit price#., valid from@, green?, plan type=fixed/variable/night
    outage: title, start date@, homes affected#, repaired?, cause=storm/accident/maintenance
moderation
    post: title, body, views#, posting date@, status=visible/hidden/removed, locked?, topics*, >forum
    forum: name, description, moderators#, archived?
    report case: reason, filed by, reported on@, handled?, severity=low/medium/high, >post
    ban: username, end date@, strikes#, lifted?, >forum
drones
    drone: name, model, flight hours#., range#, status=grounded/flying/serviced, insured?
    flight: title, pilot, flight date@, max height#, incident?, >drone
    no fly area: name, radius#., active?, reason kind=airport/military/event
    battery pack: label, cycles#, charge#, swollen?, >drone
catering
    menu: name, price per head#., courses#, vegan?, season=spring/summer/autumn/winter
    banquet: title, client, event date@, heads#, status=quoted/booked/served, >menu
    ingredient: name, supplier, kilograms#., frozen?, allergen?
    chef: full name, phone, cuisine=french/thai/mexican, available?
typography
    typeface: name, designer, styles#, release date@, classification=serif/sans/script, variable?
    glyph: name, unicode label, width#, reviewed?, >typeface
    font license: licensee, seats#, fee#., valid until@, revoked?, >typeface
    specimen sheet: title, pages#, printed?, paper size=a4/a3/letter, >typeface
quarry works
    stone block: label, tons#., extracted on@, stone=granite/marble/slate, cracked?, >pit
    pit: name, depth#., flooded?, opening date@
    blast: title, charge#., firing date@, status=planned/fired/cancelled, >pit
    saw: model, blade diameter#, running?
surveying
    questionnaire: title, questions#, start date@, status=draft/open/closed, anonymous?
    respondent: nickname, age#, country, opted out?
    answer sheet: title, score#, submission date@, complete?, >questionnaire, >respondent
    panel: name, size#, paid?
marina
    yacht: name, length#., owner name, hull=wood/steel/fiberglass, insured?, >berth
    berth: label, depth#., daily rate#., reserved?
    mooring fee: title, amount#., due date@, settled?, >yacht
    dinghy: name, seats#, inflatable?, color
ceramics
    pot: title, glaze, height#., firing date@, state=wet/bisque/finished, cracked?, >kiln
    kiln: name, max temperature#, chambers#, busy?
    clay: name, kilograms left#., grain=fine/medium/coarse, local?
    workshop place: participant, day@, fee#., paid?
logbook
    diver: full name, certification=open/rescue/master, dives#, insured?
    dive: title, depth#., dive date@, minutes#, night?, >diver, >reef
    reef: name, country, visibility#, protected?
    wetsuit: name, maker, thickness#, rented?, >diver
subscriptions
    plan: name, monthly price#., trial days#, tier level=free/pro/enterprise, hidden?
    subscriber: full name, email, since@, seats#, status=active/paused/cancelled, >plan
    invoice: title, amount due#., due date@, paid?, >subscriber
    feature switch: name, description, rollout#, enabled?
expeditions
    summit: name, altitude#, country, first climbed on@, dangerous?
    climber: full name, nationality, climbs#, injured?
    expedition: title, leader name, departure date@, budget#., status=planned/underway/returned/abandoned, >summit
    supply: name, quantity#, weight#., packed?, >expedition
kitchen planning
    recipe: title, cook time#, servings#, difficulty=simple/medium/tricky, vegetarian?, hints*, >cookbook
    cookbook: name, author, published in year#, favorite?
    pantry item: name, grams#, best before@, opened?, place=fridge/shelf/cellar
    meal: title, eaten on@, guests#, leftovers?, >recipe
newsroom
    article: headline, publication date@, status=draft/reviewed/published/retracted, breaking?, >section
    section: name, editor name, position#, visible?
    source contact: full name, phone, reliability=low/medium/high, anonymous?
    correction: text, issue date@, printed?, >article
orchestra
    musician: full name, chair#, hire date@, instrument group=strings/winds/brass, substitute?
    concert: title, conductor, concert date@, tickets sold#, status=announced/postponed/played
    score sheet: title, composer name, pages#, borrowed?, >concert
    audition: candidate name, heard on@, points#, passed?
customs
    shipment: label, declared value#., arrival date@, status=held/cleared/seized, perishable?, >broker
    broker: name, license label, clearances#, suspended?
    inspection: title, officer, inspected on@, findings#, passed?, >shipment
    duty rate: name, percent#., valid from@, reduced?
"""

_ADMINISTRATION: Final = """
user: full name, email, last login@, role=admin/member/guest, active?, login count#
webhook: name, target url, event=created/updated/deleted, enabled?, failures#
team: name, description, size#, archived?
notification: title, message, sent on@, read?, channel=mail/push/chat
job: name, queue name, attempts#, started on@, status=queued/running/completed/failed
announcement: title, text, start date@, published?, views#
attachment: file name, content type, bytes#, uploaded on@, public?
api client: name, contact email, requests#, revoked?, plan level=free/paid
saved filter: name, expression, uses#, shared?
audit entry: title, actor, happened on@, outcome=allowed/denied
template: name, subject, version number#, default?
workspace: name, description, members#, suspended?, region=eu/us/asia
schedule: name, cron text, runs#, paused?, next run@
invitation: email, invitation date@, status=sent/accepted/revoked, reminders#
plugin: name, version label, downloads#, installed?, license kind=free/paid
suggestion: subject, message, rating#, received on@, answered?
"""
