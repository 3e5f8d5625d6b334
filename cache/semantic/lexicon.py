"""Word lists of the guards: English, closed classes and common pairs. Plain data; extend them with the tests.

A question in another language is not judged by them: `eligibility` keeps it out of the semantic cache.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTION_WORDS = _words(
    """a an the this that these those some any each every both either of in on at by for with about against between
    into through during to from up down out off over under again then once here there is are was were be been
    being am do does did doing done have has had having will would shall should can could may might must ought
    need and or but if because as until while than so such too very just also only own same other what which who
    whom whose when where why how i me my mine myself we us our ours ourselves you your yours yourself it its
    itself he him his himself she her hers herself they them their theirs themselves one ones someone somebody
    anyone anybody people person get gets got make makes please tell give explain describe let know want like's
    re ve ll s d m t isn aren wasn weren don doesn didn won wouldn shouldn couldn hasn haven hadn ain shan mustn
    mightn needn really actually much many lot lots thing things something anything way ways ever yet still even
    though although whether your're im ive id kind type sort etc eg ie"""
)
"""Words that carry little of what is asked; not counted as content."""

ENGLISH = _words(
    """the of is are what how why which who when where does did can should would could this that these and with from
    about have has it you your there their explain describe"""
)
"""Words by which a text is taken for English."""

FOREIGN = _words(
    """der die das und ist ein eine nicht wie warum ich wir el la los las que es una por como porque le les est une des
    pourquoi comment il di che per sono perche o os um uma não por que het een niet hoe waarom och är att jak
    czy nie"""
)
"""Words that speak against English."""

AUXILIARIES = _words(
    """is are was were am do does did can could should would will shall may might must has have had isn't aren't wasn't
    weren't don't doesn't didn't can't couldn't shouldn't wouldn't won't hasn't haven't hadn't"""
)
"""Verbs with which a yes-or-no question begins."""

NEGATIONS = _words(
    """not no non never none nobody nothing nowhere neither nor cannot cant dont doesnt didnt wont isnt arent wasnt
    werent wouldnt shouldnt couldnt havent hasnt hadnt aint without except unless hardly barely scarcely rarely seldom
    instead lack lacks lacking against only solely exclusively"""
)
"""Words that deny or restrict."""

REFUSALS = _words(
    """refuse refuses refused refusing refusal deny denies denied denying denial forbid forbids forbidden forbade
    forbidding prohibit prohibits prohibited prohibiting prohibition ban bans banned banning barred disallow disallows
    disallowed disallowing unable inability refrain refrains refrained refraining abstain abstains abstained abstaining
    boycott boycotts boycotted boycotting reject rejects rejected rejecting rejection oppose opposes opposed opposing
    resist resists resisted resisting withhold withholds withheld withholding veto vetoes vetoed vetoing shun shuns
    shunned shunning spurn spurns spurned spurning"""
)
"""Verbs and nouns that deny what they speak of. They count as content too: to refuse is not to be unable."""

NOT_WITHOUT = _words("unless nonetheless nevertheless regardless wireless stainless doubtless")
"""Words that end as those do that mean "without": seedless."""

REFUSALS_TO = _words(
    """fail fails failed failing failure decline declines declined declining neglect neglects neglected neglecting omit
    omits omitted omitting cease ceases ceased ceasing hesitate hesitates hesitated hesitating"""
)
"""Words that deny what follows them with "to"."""

REFUSALS_DOING = _words(
    """avoid avoids avoided avoiding prevent prevents prevented preventing stop stops stopped stopping quit quits
    quitting"""
)
"""Words that deny what is done: "stop working", "prevent the pipe from bursting"."""

CONJUNCTIONS = _words("and or vs versus &")
"""Words that join two things in either order."""

PREPOSITIONS = _words(
    "of in on at by for with about between into through during to from up down out off over under until than as"
)
"""Words that tell which part the next word has: "from Lisbon to Porto" is not "to Lisbon from Porto"."""

QUANTIFIERS = _words("all every each some")

OPPOSED_PARTICLES = (("up", "down"), ("on", "off"), ("over", "under"), ("all", "some"), ("every", "some"))
"""Words that turn the meaning round if a question has the one and another question the other: they may stand apart from
what they belong to, as in "turn the radio off"."""

_OPPOSED = (("to", "from"), ("into", "from"), ("for", "from"), ("until", "from"), ("in", "out"), ("into", "out"))
OPPOSED = frozenset(map(frozenset, (*OPPOSED_PARTICLES, *_OPPOSED)))
"""Prepositions that turn the meaning round if one stands for the other before the same word."""

MOVABLE = _words(
    """safe good bad best worst possible impossible legal illegal healthy unhealthy dangerous necessary hard easy
    difficult important normal common wise ok okay worth harmful risky rude useful expensive cheap"""
)
"""Adjectives that stand before a noun, after "is", or in "it is ... to": they move without a change of meaning.
Superlatives and adverbs do too."""

NOT_MOVABLE = _words(
    """forest interest request contest harvest protest invest honest modest arrest suggest digest manifest conquest
    family italy july supply reply apply comply imply multiply butterfly jelly belly bully assembly anomaly monopoly
    elderly"""
)
"""Words that end as superlatives and adverbs do."""

_IRREGULAR = """
become became, begin began begun, bite bitten, blow blew blown, break broke broken, bring brought, build built,
buy bought, catch caught, choose chose chosen, come came, deal dealt, dig dug, do done, draw drew drawn,
drink drank drunk, drive drove driven, eat ate eaten, fall fallen, feed fed, fight fought, fly flew flown,
forget forgot forgotten, forgive forgave forgiven, freeze froze frozen, give gave given, go went gone,
grow grew grown, hang hung, hear heard, hide hid hidden, hold held, keep kept, know knew known, lay laid,
lead led, lend lent, lose lost, mean meant, meet met, pay paid, ride rode ridden, ring rang rung, rise risen,
run ran, say said, see seen, sell sold, send sent, shake shook shaken, show shown, shrink shrank shrunk,
sing sang sung, sink sank sunk, sit sat, sleep slept, speak spoke spoken, spend spent, stand stood,
steal stole stolen, stick stuck, strike struck, swear swore sworn, swim swam swum, take took taken, teach taught,
tear tore torn, tell told, think thought, throw threw thrown, understand understood, wake woke woken,
wear wore worn, write wrote written
"""
IRREGULAR = {form: verb for verb, *forms in map(str.split, _IRREGULAR.split(",")) for form in forms}
"""An irregular form -> its verb; not those that are another word, too."""

LANGUAGES = _words(
    """english german french spanish italian portuguese dutch swedish norwegian danish finnish icelandic russian
    ukrainian czech slovak hungarian romanian bulgarian serbian croatian slovenian greek turkish arabic hebrew persian
    farsi urdu hindi bengali punjabi gujarati marathi tamil telugu kannada malayalam sinhala nepali chinese mandarin
    cantonese japanese korean vietnamese thai lao khmer burmese indonesian malay tagalog filipino swahili amharic yoruba
    zulu afrikaans latin esperanto irish welsh catalan basque python java javascript typescript ruby php perl kotlin
    scala haskell matlab sql html css bash cobol fortran"""
)
"""Languages of people and machines: names in small letters too."""

_SMALL = """
zero - two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
"""
"""Without one, which is mostly a pronoun: "how can one learn"."""

NUMBER_WORDS = {word: str(value) for value, word in enumerate(_SMALL.split()) if word != "-"} | {
    "thirty": "30",
    "forty": "40",
    "fifty": "50",
    "sixty": "60",
    "seventy": "70",
    "eighty": "80",
    "ninety": "90",
    "hundred": "100",
    "thousand": "1000",
    "lakh": "100000",
    "lakhs": "100000",
    "million": "1000000",
    "crore": "10000000",
    "crores": "10000000",
    "billion": "1000000000",
    "trillion": "1000000000000",
    "dozen": "12",
    "half": "1/2",
    "quarter": "1/4",
    "twice": "2",
    "double": "2",
    "triple": "3",
    "first": "#1",
    "second": "#2",
    "third": "#3",
    "fourth": "#4",
    "fifth": "#5",
    "sixth": "#6",
    "seventh": "#7",
    "eighth": "#8",
    "ninth": "#9",
    "tenth": "#10",
}
"""A number word -> its value; ordinals are another kind of number than cardinals."""

_UNITS = {
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres kms",
    "inch": "inches",
    "foot": "feet ft",
    "yard": "yards",
    "mile": "miles",
    "mg": "milligram milligrams",
    "g": "gram grams",
    "kg": "kilogram kilograms kilo kilos kgs",
    "lb": "pound pounds lbs",
    "oz": "ounce ounces",
    "ton": "tons",
    "tonne": "tonnes",
    "stone": "stones",
    "ml": "milliliter milliliters millilitre millilitres",
    "l": "liter liters litre litres",
    "gallon": "gallons",
    "pint": "pints",
    "quart": "quarts",
    "cup": "cups",
    "tbsp": "tablespoon tablespoons",
    "tsp": "teaspoon teaspoons",
    "acre": "acres",
    "hectare": "hectares ha",
    "mph": "",
    "kph": "kmh",
    "knot": "knots",
    "nautical": "",
    "psi": "",
    "pascal": "pascals pa kpa",
    "joule": "joules",
    "kwh": "",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "mbps": "",
    "gbps": "",
    "am": "",
    "pm": "",
    "ms": "millisecond milliseconds",
    "sec": "secs",
    "minute": "minutes min mins",
    "hour": "hours hr hrs",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "decade": "decades",
    "century": "centuries",
    "kb": "kilobyte kilobytes",
    "mb": "megabyte megabytes",
    "gb": "gigabyte gigabytes",
    "tb": "terabyte terabytes",
    "kw": "kilowatt kilowatts",
    "watt": "watts",
    "volt": "volts",
    "celsius": "centigrade",
    "fahrenheit": "",
    "kelvin": "",
    "kcal": "calorie calories",
    "percent": "percentage",
    "usd": "dollar dollars",
    "eur": "euro euros",
    "gbp": "sterling",
    "inr": "rupee rupees rs",
    "yen": "jpy",
    "yuan": "rmb cny",
    "rouble": "roubles ruble rubles rub",
    "peso": "pesos",
    "franc": "francs chf",
    "krona": "kronor krone kroner",
    "won": "krw",
    "dirham": "dirhams aed",
    "bitcoin": "bitcoins btc",
    "cent": "cents",
}
CURRENCIES = {"$": "usd", "€": "eur", "£": "gbp", "₹": "inr", "¥": "yen"}
"""Signs that stand before their number."""

UNITS = {word: unit for unit, words in _UNITS.items() for word in (unit, *words.split())}
UNITS |= CURRENCIES | {"%": "percent", "°": "degree", "degrees": "degree"}
"""A unit as written -> its canonical name."""

_NO_BARE_UNITS = {"m", "g", "l", "sec", "cup", "cent", "yard", "am", "pm", "won", "knot", "stone", "nautical", "pascal"}
BARE_UNITS = frozenset(UNITS.values()) - _NO_BARE_UNITS
"""Units that are recognised without a number before them, too: "how many miles"."""

MONTHS = _words(
    "january february april june july august september october november december "
    "jan feb apr jun jul aug sept sep oct nov dec"
)
"""Without march and may, which are words of another meaning too: those count as content."""
WEEKDAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
SEASONS = _words("summer autumn winter")
RELATIVE_DATES = _words("today tomorrow yesterday tonight")
DATES = MONTHS | WEEKDAYS | SEASONS | RELATIVE_DATES

_ANTONYMS = """
increase/decrease increase/reduce increase/lower raise/lower raise/reduce rise/fall rise/drop grow/shrink gain/lose
gain/loss win/lose winner/loser add/remove add/delete insert/remove insert/delete create/delete create/destroy
build/destroy install/uninstall enable/disable activate/deactivate turn-on/turn-off start/stop start/end start/finish
begin/end begin/finish begin/stop open/close opened/closed lock/unlock pause/cancel pause/resume pause/stop
resume/cancel resume/stop subscribe/unsubscribe accept/reject accept/decline accept/refuse allow/forbid allow/block
allow/ban permit/forbid approve/reject buy/sell buyer/seller buy/rent rent/sell lend/borrow send/receive give/take
push/pull import/export upload/download encrypt/decrypt encode/decode compress/decompress zip/unzip login/logout
connect/disconnect attach/detach mount/unmount follow/unfollow block/unblock hide/show show/hide enter/exit
enter/leave arrive/leave arrive/depart come/go join/leave hire/fire employ/fire save/spend save/delete save/waste
earn/spend earn/lose teach/learn ask/answer question/answer remember/forget love/hate like/dislike like/hate
agree/disagree trust/distrust help/harm help/hurt heal/hurt attack/defend protect/attack cause/prevent cause/cure
avoid/cause encourage/discourage support/oppose pro/con advantage/disadvantage benefit/risk benefit/drawback
benefit/disadvantage strength/weakness success/failure succeed/fail pass/fail true/false right/wrong right/left
correct/incorrect good/bad better/worse best/worst positive/negative pros/cons optimist/pessimist safe/dangerous
legal/illegal moral/immoral possible/impossible easy/hard easy/difficult simple/complex strong/weak rich/poor
cheap/expensive free/paid big/small large/small largest/smallest biggest/smallest long/short longest/shortest
tall/short tallest/shortest high/low higher/lower highest/lowest maximum/minimum max/min maximize/minimize most/least
more/less more/fewer many/few above/below over/under up/down inside/outside in/out internal/external front/back
top/bottom north/south east/west northern/southern eastern/western left/stay before/after early/late earlier/later
earliest/latest first/last next/previous next/last past/future old/new old/young older/younger oldest/youngest
oldest/newest ancient/modern fast/slow faster/slower fastest/slowest quick/slow hot/cold hotter/colder warm/cool
warmer/cooler heat/cool wet/dry light/dark light/heavy bright/dark black/white day/night morning/evening am/pm
alive/dead birth/death live/die born/die male/female man/woman men/women boy/girl boys/girls guy/girl husband/wife
father/mother dad/mom son/daughter brother/sister uncle/aunt king/queen
boyfriend/girlfriend actor/actress marry/divorce public/private local/remote local/global online/offline client/server
input/output source/target source/destination host/guest parent/child student/teacher doctor/patient employer/employee
employee/employer question/answer frontend/backend read/write reader/writer odd/even prime/composite acid/base
vertical/horizontal row/column synchronous/asynchronous mutable/immutable liquid/solid gas/liquid introvert/extrovert
victory/defeat war/peace friend/enemy hero/villain introduction/conclusion theory/practice always/never full/empty
thick/thin wide/narrow deep/shallow loud/quiet clean/dirty hard/soft tight/loose rough/smooth sharp/dull sweet/bitter
smart/stupid smart/dumb brave/cowardly happy/sad happiest/saddest beautiful/ugly polite/rude kind/cruel
honest/dishonest proud/ashamed increase/drop veg/nonveg vegetarian/carnivore plus/minus add/subtract multiply/divide
debit/credit asset/liability profit/loss import/exports supply/demand cost/benefit wake/sleep sunrise/sunset stand/sit
walk/run attract/repel expand/contract absorb/emit inhale/exhale evaporate/condense freeze/melt freeze/boil melt/boil
freezing/boiling melting/boiling melting/freezing oxidation/reduction anode/cathode mitosis/meiosis artery/vein
viral/bacterial virus/bacteria omnivore/carnivore herbivore/carnivore democrat/republican democrats/republicans
liberal/conservative left/right capitalism/communism socialism/capitalism weight-loss/weight-gain android/ios
iphone/android most/less
"""
ANTONYMS: dict[str, frozenset[str]] = {}
for _pair in _ANTONYMS.split():
    _left, _right = _pair.split("/")
    ANTONYMS[_left] = ANTONYMS.get(_left, frozenset()) | {_right}
    ANTONYMS[_right] = ANTONYMS.get(_right, frozenset()) | {_left}

NEGATING_PREFIXES = ("un", "non", "dis", "in", "im", "il", "ir", "de", "anti", "mis", "pre", "post", "hyper", "hypo")
"""A word and the same with one of these before it mean different things."""

SYNONYMS = {
    word: group.split()[0]
    for group in """best good great nice top
buy purchase purchasing
movie film
picture photo photograph image pic
car automobile vehicle
phone cellphone cellphones mobile smartphone
laptop notebook
job career
kid child
begin start
quickly fast quick
big large huge
remove delete eliminate erase rid
fix repair solve resolve
improve enhance better increase
learn study
earn make
recover retrieve restore
cause reason
difference differences distinguish differ differentiate
mean meaning definition define
prevent avoid
important significance importance significant
example examples instance
happen occur
often frequently
company firm
usa us america united-states
uk britain united-kingdom
bollywood hindi-film
india indian
website site web-site
app application
program programme software
pretty beautiful
effective efficient
advice tip tips suggestion suggestions
method approach technique
speak talk
reduce decrease lower
become becoming
choose select pick
hate dislike
required requirement requirements
necessary needed
benefit advantage
drawback disadvantage
doctor physician
hotel inn
teacher tutor
stop quit
overcome conquer
easy simple easily
""".splitlines()
    if group
    for word in group.split()
}
"""A word -> what stands for it and the words that replace it in most questions."""
