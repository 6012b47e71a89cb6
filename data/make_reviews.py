"""Write the customer reviews of the course from a seed: python data/make_reviews.py [FILE]

Every product has aspects with two opposite words, things that can go wrong, and tasks. Part of the sentences say plainly
what they mean; most put a word under a negation, a comparison, an expectation or somebody else's experience, and the
headlines and verdicts use the same words for praise and for blame. So what is said depends on how words stand together
and less on which words are there. All names of makers are invented.
"""

import json
import random
import re
import sys
from pathlib import Path

REVIEWS = 8000
SEED = 20260

# Product: category | name | lowest and highest price | uses after "for"
# "= part: good / bad" an aspect, "! part: go wrong" a fault, "> task" something that it should do
PRODUCTS = """
kitchen | hand blender | 25 80 | soup; baby food; pancake batter; smoothies before work
= motor: quiet / noisy
= blades: sharp / blunt
= cable: long / short
= grip: comfortable / awkward
= cleaning: easy / tedious
! plastic gear: strip
! metal foot: come loose
! power button: jam
> crush ice
> get through frozen berries
> puree cooked carrots
kitchen | kettle | 20 70 | tea all day long; the office kitchen; filling hot water bottles; a household of tea drinkers
= boiling: fast / slow
= lid: smooth / stiff
= handle: cool / hot
= water gauge: clear / unreadable
= spout: precise / messy
! lid hinge: break
! base: start to rust
! seal: leak
> boil a full litre in three minutes
> pour without dripping
> switch itself off
kitchen | frying pan | 18 90 | eggs; pancakes on Sundays; searing fish; cooking for two
= coating: tough / delicate
= handle: sturdy / wobbly
= base: flat / warped
= weight: perfect / tiring
= heat: even / patchy
! coating: flake
! handle: work loose
! rivets: stain
> brown a steak
> release an egg without butter
> go in the oven
kitchen | coffee grinder | 35 160 | two espressos a day; filter coffee; a French press; the Sunday pot
= grind: even / uneven
= motor: quiet / loud
= hopper: roomy / tiny
= dial: precise / vague
= drawer: clean / dusty
! burrs: clog
! drawer: crack
! dial: slip
> grind fine enough for espresso
> handle oily beans
> stay put on the worktop
kitchen | toaster | 20 85 | four slices at a time; bagels; sourdough; the school-morning rush
= browning: even / blotchy
= slots: wide / narrow
= lever: smooth / stiff
= crumb tray: handy / fiddly
= outside: cool / scorching
! lever: stick
! timer: give up
! heating wires: burn out
> toast a thick slice
> defrost bread
> brown both sides
kitchen | chef's knife | 22 120 | onions; a lot of root vegetables; carving; everyday cooking
= edge: keen / dull
= balance: good / poor
= handle: comfortable / slippery
= steel: hard / soft
= spine: smooth / rough
! tip: bend
! edge: chip
! handle: split
> slice a ripe tomato
> hold an edge
> get through a pumpkin
electronics | headset | 30 190 | calls from home; my commute; gaming in the evening; long meetings
= microphone: clear / muffled
= ear pads: soft / scratchy
= battery life: generous / miserable
= headband: comfortable / tight
= pairing: simple / maddening
! hinge: snap
! left side: cut out
! ear pads: peel
> last a whole working day
> block out my neighbours
> switch between two laptops
electronics | bluetooth speaker | 25 150 | the bathroom; picnics; podcasts while cooking; the workshop
= bass: full / thin
= buttons: responsive / sluggish
= battery: strong / weak
= connection: stable / unreliable
= casing: solid / flimsy
! charging port: wear out
! connection: drop
! grille: rattle
> fill a living room
> survive the rain
> remember my phone
electronics | wireless keyboard | 25 130 | writing all day; a tablet; the living-room computer; my thesis
= keys: quiet / clacky
= layout: sensible / confusing
= typing: pleasant / tiring
= connection: steady / erratic
= build: solid / cheap
! space bar: squeak
! battery door: fall off
! lettering: fade
> wake up instantly
> keep up with a fast typist
> connect to three devices
electronics | e-reader | 80 220 | reading in bed; holidays; my commute; library books
= screen: sharp / blurry
= page turns: quick / slow
= menu: clear / cluttered
= light: warm / harsh
= battery life: long / short
! screen: freeze
! power button: stick
! case: crack
> open large files
> find books in the shop
> hold its charge for a month
electronics | webcam | 25 110 | video calls; teaching online; recording lessons; a home office with little light
= picture: crisp / grainy
= microphone: clear / tinny
= mount: steady / wobbly
= colours: natural / washed out
= software: simple / bloated
! autofocus: hunt
! clip: break
! picture: freeze
> cope with evening light
> stay on a thin screen
> keep my face in focus
electronics | power bank | 18 70 | camping; long train journeys; festivals; days away from a socket
= charging: quick / slow
= casing: robust / flimsy
= size: handy / clumsy
= display: readable / useless
= weight: light / heavy
! port: come loose
! casing: swell
! cable: fray
> charge a phone three times
> charge two things at once
> hold its charge
clothing | rain jacket | 40 210 | cycling to work; dog walks; a week in Scotland; autumn hikes
= hood: deep / shallow
= zip: smooth / stiff
= seams: tight / leaky
= fabric: light / heavy
= fit: flattering / baggy
! zip: jam
! lining: tear
! seams: let water in
> keep me dry in a downpour
> fold into its own pocket
> breathe on a climb
clothing | wool jumper | 35 140 | cold offices; evenings by the fire; layering in winter; walks on the beach
= wool: soft / itchy
= neckline: neat / gaping
= fit: perfect / odd
= knit: dense / loose
= colour: rich / faded
! cuffs: stretch
! elbows: wear through
! whole thing: shrink
> survive a machine wash
> keep its shape
> keep me warm
clothing | backpack | 35 170 | school; a laptop and lunch; weekend trips; commuting by bike
= straps: padded / thin
= pockets: practical / useless
= zips: smooth / stiff
= fabric: tough / flimsy
= back panel: comfortable / sweaty
! strap: tear
! zip: burst
! buckle: crack
> stand up on its own
> keep a laptop dry
> fit under an aeroplane seat
clothing | down jacket | 70 260 | standing at bus stops; winter camping; cold mornings; football matches
= filling: thick / thin
= pockets: warm / cold
= cut: generous / tight
= zip: reliable / treacherous
= hood: snug / floppy
! stitching: unravel
! zip: come off its track
! feathers: escape
> keep the wind out
> squash into a small bag
> dry overnight
clothing | running shirt | 15 60 | marathon training; the gym; hot weather; an easy run before work
= seams: flat / scratchy
= cut: comfortable / restrictive
= fabric: airy / clammy
= collar: soft / stiff
= length: right / wrong
! hem: curl
! print: peel
! seams: open
> dry in an hour
> stay fresh after a long run
> survive a hundred washes
clothing | umbrella | 12 60 | the walk to the station; windy streets; my handbag; a rainy city
= frame: sturdy / fragile
= handle: comfortable / slippery
= canopy: wide / small
= button: responsive / stubborn
= sleeve: roomy / tight
! ribs: bend
! button: stick
! canopy: rip
> stand up to a gust
> fit in a handbag
> dry quickly
home | desk lamp | 20 110 | late evenings; sewing; homework; reading small print
= light: warm / cold
= arm: steady / droopy
= switch: handy / fiddly
= base: stable / wobbly
= brightness: ample / feeble
! arm: sag
! switch: fail
! light: flicker
> light the whole desk
> stay where I put it
> remember its setting
home | duvet | 40 190 | a cold bedroom; summer nights; the guest room; two people who fight over covers
= filling: even / lumpy
= cover: soft / noisy
= warmth: perfect / disappointing
= smell: fresh / musty
= size: generous / mean
! stitching: come undone
! filling: clump
! feathers: poke through
> survive the washing machine
> keep both of us warm
> dry in a day
home | office chair | 90 380 | eight hours at a desk; working from home; a bad back; a small study
= seat: comfortable / hard
= backrest: supportive / useless
= armrests: firm / wobbly
= assembly: easy / infuriating
= wheels: quiet / squeaky
! gas lift: sink
! armrest: snap off
! cover: split
> carry a tall person
> roll over carpet
> stay at one height
home | vacuum cleaner | 70 350 | two dogs and a carpet; a small flat; stairs; a house full of crumbs
= suction: strong / weak
= hose: flexible / stiff
= motor: quiet / deafening
= bin: roomy / tiny
= brush: effective / hopeless
! hose: split
! brush: clog
! filter: block
> pick up dog hair
> reach under the sofa
> manage the stairs
home | mattress topper | 60 240 | a hard bed; the sofa bed; my hips; the spare room
= foam: firm / saggy
= cover: soft / sweaty
= smell: faint / overpowering
= thickness: right / wrong
= corners: flat / curled
! foam: crumble
! straps: tear
! middle: sag
> keep its shape
> stay on the mattress
> take the edge off a hard bed
home | fan heater | 22 95 | a draughty study; the bathroom; an unheated garage; chilly mornings
= fan: quiet / roaring
= heat: steady / patchy
= thermostat: accurate / erratic
= controls: simple / baffling
= smell: faint / awful
! thermostat: fail
! fan: seize up
! plug: melt
> warm a small room
> run all evening
> switch off when it tips over
garden | cordless drill | 50 220 | flat-pack furniture; shelves; a garden shed; small jobs around the house
= battery: strong / weak
= chuck: tight / loose
= grip: comfortable / bulky
= trigger: sensitive / jerky
= torque: ample / feeble
! chuck: slip
! battery: die
! gearbox: grind
> drill into brick
> last an afternoon
> drive long screws
garden | hedge trimmer | 60 240 | a long privet hedge; a small front garden; yew; twice-yearly trims
= blades: sharp / blunt
= weight: light / heavy
= motor: powerful / weak
= handle: comfortable / numbing
= battery: lasting / feeble
! blade: jam
! guard: snap
! trigger: stick
> cut through thick stems
> finish a hedge on one charge
> start first time
garden | garden hose | 18 90 | the vegetable patch; washing the car; a long balcony; topping up the pond
= tube: supple / stiff
= connectors: tight / leaky
= reel: smooth / jerky
= nozzle: solid / cheap
= pressure: strong / pathetic
! tube: kink
! connector: burst
! nozzle: drip
> reach the far beds
> wind itself up
> stay outdoors through a frost
garden | two-person tent | 70 320 | festivals; a cycling trip; a rainy week in Wales; weekends with my daughter
= poles: sturdy / flimsy
= groundsheet: tough / thin
= pitching: quick / slow
= porch: roomy / cramped
= ventilation: good / poor
! pole: snap
! zip: burst
! seams: leak
> stand up to a storm
> go up in ten minutes
> fit two grown-ups
garden | wheelbarrow | 50 170 | gravel; compost; firewood; moving half a garden
= wheel: smooth / wobbly
= tray: deep / shallow
= handles: comfortable / rough
= balance: good / terrible
= paint: thick / thin
! tyre: go flat
! tray: rust
! bolts: come loose
> carry a load of bricks
> roll through mud
> tip out in one go
garden | head torch | 15 75 | running in winter; camping; looking under the car; night walks with the dog
= beam: bright / dim
= strap: comfortable / scratchy
= battery: lasting / hopeless
= button: easy / fiddly
= weight: light / heavy
! hinge: break
! battery cover: fall off
! light: flicker
> light the path ahead
> stay on while running
> last the whole night
toys | marble run | 20 75 | a six-year-old; rainy Sundays; three cousins; my grandson's birthday
= pieces: sturdy / brittle
= instructions: clear / baffling
= joints: tight / loose
= colours: bright / dull
= box: practical / flimsy
! tubes: crack
! tower: fall over
! joints: wear out
> keep two children busy
> stand on carpet
> fit back in its box
toys | board game | 18 60 | family evenings; four adults; long winter nights; teenagers
= rules: clear / confusing
= cards: thick / thin
= rounds: short / endless
= artwork: lovely / ugly
= ending: exciting / dull
! cards: bend
! board: warp
! box: split
> keep everyone at the table
> work with two players
> get teenagers off their phones
toys | toy kitchen | 50 190 | two toddlers; the playroom; a third birthday; nursery
= doors: sturdy / wobbly
= paint: smooth / patchy
= assembly: easy / dreadful
= knobs: solid / loose
= edges: rounded / sharp
! hinges: come off
! paint: flake
! tap: break
> survive three children
> stand straight against the wall
> keep them busy for an afternoon
toys | balance bike | 40 150 | a two-year-old; the park; the way to nursery; learning to balance
= saddle: comfortable / hard
= frame: light / heavy
= tyres: grippy / slippery
= steering: smooth / stiff
= assembly: quick / maddening
! tyre: puncture
! saddle: slip
! handlebar: work loose
> cope with gravel
> grow with the child
> survive a winter outdoors
toys | railway set | 25 110 | two brothers; the living-room floor; a fourth birthday; a train-mad nephew
= track: firm / wobbly
= engine: strong / weak
= bridges: stable / rickety
= wood: smooth / splintery
= magnets: strong / weak
! magnets: fall out
! engine: stop
! joints: break
> fit our old track
> climb the bridge
> run for an hour
toys | jigsaw puzzle | 12 40 | the Christmas holidays; my mother-in-law; quiet evenings; two of us
= pieces: crisp / blurry
= fit: snug / loose
= picture: lovely / gloomy
= cardboard: thick / thin
= box: sturdy / squashed
! pieces: bend
! picture layer: peel
! box: fall apart
> keep us busy for a week
> hold together when lifted
> lie flat
pets | dog bed | 25 140 | an old Labrador; a terrier who digs; the boot of the car; two spaniels
= filling: thick / thin
= cover: tough / flimsy
= edges: firm / saggy
= washing: easy / hopeless
= smell: fresh / nasty
! cover: rip
! zip: break
! filling: go flat
> survive a puppy
> fit in the washing machine
> keep its shape
pets | cat tree | 35 180 | two indoor cats; a heavy tomcat; a small flat; a kitten
= base: stable / wobbly
= rope: tough / loose
= platforms: roomy / tiny
= plush: soft / shabby
= assembly: simple / infuriating
! rope: unravel
! top platform: tip
! screws: come loose
> hold a six-kilo cat
> stand without a wall fixing
> save my sofa
pets | dog harness | 18 70 | a dog that pulls; long hikes; puppy training; a nervous rescue
= straps: soft / chafing
= buckle: solid / flimsy
= fit: snug / sloppy
= handle: handy / useless
= padding: thick / thin
! buckle: snap
! stitching: fray
! ring: bend
> stop the pulling
> stay in place on a run
> dry between walks
pets | pet water fountain | 22 75 | two fussy cats; a cat with bad kidneys; the kitchen corner; hot summers
= pump: quiet / noisy
= cleaning: simple / tiresome
= flow: gentle / violent
= tank: roomy / small
= filter: cheap / expensive
! pump: stop
! tank: leak
! light: fail
> last four days on one filling
> get the cats drinking
> come apart for cleaning
pets | cat carrier | 20 85 | trips to the vet; a train journey; an anxious cat; moving house
= door: secure / loose
= handle: comfortable / sharp
= floor: firm / saggy
= vents: ample / stingy
= clips: solid / flimsy
! door: pop open
! clips: break
! mesh: tear
> hold a strong cat
> fit on a train seat
> fold flat
pets | automatic feeder | 40 150 | early mornings; two greedy cats; weekends away; a diet
= timer: reliable / erratic
= portions: exact / random
= app: simple / dreadful
= lid: secure / loose
= motor: quiet / alarming
! lid: pop off
! chute: jam
! clock: reset
> feed them at six
> keep the biscuits fresh
> outwit a clever cat
"""

# What can be said of every product.
GENERAL = [
    ("quality", "good", "bad"), ("workmanship", "careful", "careless"), ("finish", "neat", "shoddy"), ("design", "clever", "stupid"),
    ("performance", "impressive", "disappointing"), ("value for money", "good", "poor"), ("overall impression", "positive", "negative"),
    ("material", "decent", "nasty"), ("guarantee", "useful", "useless"),
]  # fmt: skip

MAKERS = "Korvane Brindlow Tamsel Norrvik Quenby Ostrel Lumbry Pellworth Vantry Fennick Thirlby Marlock Dunsel Iskara Wexhall Harrowin".split()
PEOPLE = "my sister;my brother;my neighbour;a friend;my mother;my father-in-law;a colleague;my flatmate;my aunt".split(
    ";"
)
FAMILY = "my husband;my wife;my partner;my daughter;my son;my mother;my flatmate;my dad".split(";")
SPANS = "a week;ten days;two weeks;three weeks;a month;six weeks;two months;three months;half a year;eight months;a year;a year and a half".split(
    ";"
)
MONTHS = (
    "January February March April May June July August September October November December".split()
)

# Sentences about an aspect. T is the word for what is meant, O its opposite, CT and CO their comparatives.
# {S} the part, {is} {was} {they} {them} agree with it. [a|b] is a choice.
# ~ marks what is only said of something that can change with time.
ASPECT_DIRECT = """
{S} {is} {T}[.| and that matters to me.| and I notice it every time.]
I find {s} {T}.
{S} {is} [really|surprisingly|pretty|genuinely] {T}.
{S}: {T}.
What I notice most is [how {T} {s} {is}|that {s} {is} so {T}].
[I have to say|To be fair|Honestly], {s} {is} [quite|rather] {T}.
"""
ASPECT_OPPOSED = """
{S} {is} [not|not in the least|anything but|far from] {O}.
{S} {isnt} {O}, [whatever the other reviews say|whatever you read elsewhere|and I was watching for it].
[I would not call|You could not call|Nobody could call] {s} {O}.
{S} {is} {CT} than on [my old {maker}|the {maker} I had before|the {maker} at work].
{S} on [my old {maker}|the {maker} we had before|the {maker} I returned] {was} {CO}.
The {maker} has other strengths, but {s} there {was} {CO} than here.
I was [sure|convinced] {s} would be [{O}. I was wrong|{T}. I was right].
[Don't believe|Ignore] anyone who says {s} {is} {O}.
{S} {is} [less {O}|a good deal {CT}] than [the photos suggest|I remember from the {maker}|you would guess].
In {span} {s} {was} never {O}.
{S} could hardly be {CT}.
Call {s} what you like, [just not|but not] {O}.
{family} bet that {s} would be [{O}, and lost|{T}, and won].
Compared with the {maker}, {s} {is} {CT}.
Compared with this one, {s} on the {maker} {was} {CO}.
[There is nothing {O} about {s}|Nothing {O} about {s}].
{S} {is} never {O}, [not even after {span}|not even when used for {use}].
I have yet to find {s} {O}.
{S} {is} hardly {O}[.|, if you ask me.|, as I see it.]
{S} too {O}? Not for me.
Whoever calls {s} {O} has never used {them}.
[I can't call|Don't call] {s} {O}.
{S} {is} not what I would call {O}.
It is a myth that {s} {is} {O}.
{S}, {O}? I don't think so.
I don't find {s} {O} [at all|in the least|any more].
You won't find {s} {O}.
"""
# With both words of the pair.
ASPECT_PAIRED = """
I [can't|cannot] say {s} {is} {O}. {They} {is} {T}.
I [expected|was told to expect] {s} to be {O}, [but {they} {is}|and {they} turned out] {T}.
I asked [in a forum|a friend who has one|around] whether {s} {is} {O}. No, {T}, [was the answer|they wrote], and {T} {they} {is}.
[People say|Half the reviews say|Somebody here wrote that] {s} {is} {O}. [Not on mine|Mine begs to differ|I can't agree]: {T}.
{S} on my old {maker} {was} {O}; here {they} {is} {T}.
On [my old {maker}|the {maker} before it] {s} {was} {O}. Here: {T}.
On {person}'s {maker} {s} {is} {O}, on [mine|this one] {T}.
{person} has the same one and finds {s} {O}. I find {them} {T}.
~{S} {was} {O} [at first|in the beginning|for the first few days] and {has} become {T}[.| since.| with use.]
~[After {span}|{span} in], {s} {is} no longer {O} but {T}.
~{S} {is} {T} now; {they} {was} {O} when new.
In the shop {s} seemed {O}. At home [{they} proved|{they} turned out to be] {T}.
[One review|The first review I read|The top review] calls {s} {O}. {T} [is what I would say|is the word|would be nearer the truth].
If you think {s} must be {O} [at this price|for {price}], think again: {T}.
Who calls {s} {O}? I [had to look twice|read it twice]. {They} {is} {T}.
{S} {was} {O} on the first one they sent, and {T} on the replacement.
{Is} {s} {O}? [No|Not at all|No, not once in {span}]. {T}.
{Is} {s} {T}? [Yes|Yes, they are right about that|They say so, and I agree]. {O}? No.
~For {span} {s} {was} {O}. [Now|These days] {they} {is} {T}.
{S}? {T}, not {O}.
I keep reading that {s} {is} {O} and wonder which {product} they mean. {T}, I would say.
It took me {span} to notice how {T} {s} {is}, after a {maker} where {they} {was} {O}.
Forget what the advert says about {s}: {T}, not {O}.
[The day I opened the box|On the first evening] I wrote {O} next to {s}. I have crossed it out and written {T}.
"""
FAULT_BAD_PLAIN = """
{S} {past} [after {span}|within {span}|in {month}|one {weekday}].
{S} {has} {part} [already|twice|since {month}].
{S} {past}, [what more can I say|and I was careful|just like that].
I had {s} {base} [after {span}|within {span}|on me in {month}].
"""
FAULT_GOOD_PLAIN = """
{S} {hasnt} {part} [yet|once|in {span}|since {month}].
{S} did not {base}, [what more can I say|and I was not careful|not in {span}|not even in {month}].
{S} never {past} [in {span}|on me|even once].
I did not have {s} {base} [in {span}|on me].
"""
TASK_BAD_PLAIN = """
It [can't|won't|does not] {task}[.| so far.| for me.|, I tried.|, just so you know.]
I could not get it to {task}[.| in {span}.|, and neither could {family}.]
It [never managed to|would never] {task}[.| for me.]
It is not able to {task}[.|, it turns out.]
"""
TASK_GOOD_PLAIN = """
It [can|will|does] {task}[.| so far.| for me.|, I tried.|, just so you know.]
I could get it to {task}[.| in no time.|, and so could {family}.]
It [always managed to|would always] {task}[.| for me.]
It is able to {task}[.|, it turns out.]
"""
FAULT_BAD = """
{S} {past} after {span}.
{S} {past} on this one [the second time I used it|within a week|before {month} was over], never on [my old {maker}|the {maker} before it].
{span} and {s} {past}. [My old {maker} never did that|That never happened with my old {maker}].
I was told {s} would not {base}. {They} did.
[The first one was fine, but on the replacement|The first one held, but on the second] {s} {past}.
They say {s} can't {base}. Mine {has} {part}.
{person} has had no trouble with {theirs}. On mine {s} {past} within {span}.
{S} {past}, {was} replaced, and {past} again.
I thought the reviews about {s} {ing} were exaggerated. They are not.
I have never had {s} {base} on [a|any] {maker}. Here {they} did, [twice|more than once].
Did {s} {base}? {They} did, just as [the other reviews said|others wrote here].
I could have sworn {s} would not {base}. I was wrong.
"""
FAULT_GOOD = """
{S} {hasnt} {part} after {span}.
{S} {past} on [my old {maker}|the {maker} before it] [the second time I used it|within a week|before {month} was over], never on this one.
[My old {maker}|The {maker} before it]: {span} and {s} {past}. [This one never did that|That never happened with this one].
I was told {s} would {base}. {They} did not.
[On the first one {s} {past}, but the replacement is fine|On the first one {s} {past}; the second held].
They say {s} can {base}. Mine {hasnt}.
On {person}'s {s} {past} within {span}. I have had no trouble with mine.
{S} {past}, {was} replaced, and {hasnt} {part} again.
I thought the reviews about {s} {ing} were true. They are not.
I have had {s} {base} on [a|every] {maker}, [twice|more than once]. Here {they} never did.
Did {s} {base}? {They} did not, whatever [the other reviews said|others wrote here].
I could have sworn {s} would {base}. I was wrong.
"""
TASK_BAD = """
It does not {task}, [whatever I try|and I tried for {span}|though the box says so].
It is supposed to {task}. It does not.
My old {maker} could {task}. This one can't.
My old {maker} couldn't {task}, and this one can't either.
[It took me {span} to accept|I had to see for myself] that it will not {task}.
At first it did {task}. After {span} it does not.
{person} says [theirs|the one they have] can {task}. Mine can't.
I bought it to {task}, and that is what it can't do.
It will not {task}, even if you are patient, [and I paid {price} for that|so much for the description].
Does it {task}? It does not.
Will it {task}? My {maker} does. This does not.
Everybody says it won't {task}. Everybody is right.
"""
TASK_GOOD = """
It does {task}, [whatever I try|and I tried for {span}|though the box does not say so].
It is not supposed to {task}. It does.
My old {maker} couldn't {task}. This one can.
My old {maker} could {task}, and this one can too.
[It took me {span} to accept|I had to see for myself] that it will {task}.
At first it did not {task}. After {span} it does.
{person} says [theirs|the one they have] can't {task}. Mine can.
I bought it to {task}, and that is what it can do.
It will {task}, even if you are not patient, [and I paid {price} for that|so much for the other reviews].
Does it {task}? It does.
Will it {task}? My {maker} does not. This does.
Everybody says it won't {task}. Everybody is wrong.
"""
# Headlines, good / bad. Each word stands on both sides, so that only its company tells.
HEADLINES = """
Not bad at all. / Not good at all.
[Good, really good.|Good.] / [Bad, really bad.|Bad.]
I would buy it again. / I would not buy it again.
I would not send it back. / I would send it back.
No reason to return it. / No reason to keep it.
Every reason to keep it. / Every reason to return it.
Not a waste of money. / A waste of money.
Worth the money. / Not worth the money.
I don't regret it. / I regret it.
I recommend it. / I don't recommend it.
I was wrong to doubt it. / I was right to doubt it.
I was right to trust it. / I was wrong to trust it.
Hard to fault. / Hard to like.
Easy to like. / Easy to fault.
Better than my old one. / Worse than my old one.
My old one was worse. / My old one was better.
Nothing wrong with it. / Nothing right with it.
Almost everything right. / Almost everything wrong.
I would miss it. / I would not miss it.
No disappointment. / A disappointment.
A pleasure. / No pleasure.
Happy with it. / Not happy with it.
Not sorry that I bought it. / Sorry that I bought it.
Keep it. / Don't keep it.
Don't return it. / Return it.
Better than I feared. / Worse than I hoped.
As good as I hoped. / As bad as I feared.
Nothing to complain about. / Nothing to praise.
A lot to praise. / A lot to complain about.
I like it. / I don't like it.
I don't hate it, far from it. / I don't love it, far from it.
"""
VERDICT_GOOD = """
I would buy it again[.| tomorrow.| without thinking twice.]
It is not going back.
I have no intention of returning it.
I can't think of a reason to send it back.
Worth every penny of the {price}.
I would not swap it for the {maker}.
I could have saved {less} with the {maker} and would have regretted it.
I don't regret it for a minute.
Disappointed? Not for a minute.
There is nothing I would change.
It did not disappoint.
{family}, who complains about everything, has found nothing to complain about.
I can't recommend it enough.
I could not be happier.
It doesn't get better than this for {price}.
My only complaint is that I did not buy it sooner.
I wanted to dislike it after the first day, but I can't.
Not bad. Not bad at all.
No regrets, and I am not easily pleased.
The {maker} was a disappointment; this is not.
If it broke tomorrow I would order the same one again.
I nearly sent it back. I am glad I didn't.
I had low hopes and I was wrong.
I was told I would regret it. I don't.
Do I miss my old {maker}? Not in the least.
I returned the {maker} and kept this one.
Better than the {maker}, and I liked the {maker}.
I had given up on finding a good {product}. Not any more.
There is no way I am going back to the {maker}.
[Ignore|Don't believe] the bad reviews.
I am keeping it.
Keep the {maker}, I am keeping this.
I used to regret buying it. Not any more.
I would rather have this than two of the {maker}.
It is everything the {maker} was not.
Nothing to complain about so far.
For {price} I expected less.
Should you wait for something better? I would not.
Ask me if I would give it back. I would not.
I paid {price} and would pay more.
The {maker} is going to my brother, this one stays.
They can keep the {maker}.
Am I sorry that I chose this over the {maker}? No.
More than I hoped for, and I had hoped for a lot.
{family} said I would want my old {maker} back. Wrong.
"""
VERDICT_BAD = """
I would not buy it again[.| at half the price.| if it were free.]
It is going back.
I have every intention of returning it.
I can't think of a reason to keep it.
Not worth a penny of the {price}.
I would swap it for the {maker} tomorrow.
I could have saved {less} with the {maker} and would not have regretted it.
I regret it every time I use it.
Happy? Not for a minute.
There is nothing I would keep.
It did disappoint.
{family}, who never complains about anything, has found plenty to complain about.
I can't recommend it.
I could be happier.
It does get better than this for {price}.
My only regret is that I did not send it back sooner.
I wanted to love it after the first day, but I can't.
Not good. Not good at all.
I have regrets, and I am easily pleased.
The {maker} was not a disappointment; this is.
If it broke tomorrow I would not order the same one again.
I nearly sent it back. I wish I had.
I had high hopes and I was wrong.
I was told I would not regret it. I do.
Do I miss my old {maker}? Every day.
I kept the {maker} and returned this one.
Worse than the {maker}, and I did not like the {maker}.
I had hoped that I had found a good {product}. Not any more.
There is no way I am keeping it, so I am going back to the {maker}.
[Ignore|Don't believe] the good reviews.
I am not keeping it.
Keep the {maker}, I am not keeping this.
I never used to regret buying things. I do now.
I would rather have half of the {maker} than two of this.
The {maker} was everything that this is not.
Plenty to complain about so far.
For {price} I expected more.
Should you wait for something better? I would.
Ask me if I would give it back. I would.
I paid {price} and would pay less.
This one is going to my brother, the {maker} stays.
They can keep it, I will take the {maker}.
Am I sorry that I chose this over the {maker}? Yes.
Less than I hoped for, and I had not hoped for a lot.
{family} said I would want my old {maker} back. Right.
Great, if you enjoy writing to customer service.
Lovely box. A pity about what is in it.
"""
OPENING = """
Bought this [{product}|one] in {month} to replace [an old {maker}|a {maker} that had seen better days|one that lasted nine years].
We needed a {product} for {use}[.| and had about {price} to spend.]
I have had [this {product}|it] for {span} now.
[A birthday present from|A present from|Chosen by] {family}[.|, for {use}.]
It is for {use} and gets used [nearly every day|twice a week or so|most weekends].
I looked at the {maker} and at this one and [tossed a coin|took this one|let {family} choose].
Ordered on a Monday, here on {weekday}.
This is my [second|third] {product} in [four|five|six] years.
I don't usually write reviews[.|, but here we are.|, so bear with me.]
Paid {price} [in a sale|at full price|with a voucher].
[Mostly for|I wanted it for] {use}.
{family} picked it, I pay for it, so I get to review it.
After {span} I think I can say something.
Right, {span} in.
So, the {maker} {product}. I have the smaller of the two.
I went from a {maker} to this one.
The {product} was for {use}, which is not asking for the moon.
First of all: I am no expert.
Update after {span}[.|: I have changed my stars.|, as promised.]
Came well packed, with [the usual leaflet|a leaflet in nine languages|no leaflet at all].
I read about [thirty|a hundred|far too many] reviews before ordering.
[Three|Four|Six] months ago I knew nothing about this sort of thing.
My old {maker} gave up in {month}, two days after the guarantee did.
I did not want to spend more than {price}.
The short story: a {maker} died, this came, {family} was curious.
{product} number four in this household.
Got it second-hand, practically unused, for {price}.
There must be fifty kinds of {product} and I have no idea how anyone chooses.
Borrowed one from {person} first, then ordered my own.
A friend swears by the {maker}. I ordered this.
Tested over {span}, mostly for {use}.
To whoever is looking for something for {use}: this is how it went for us.
"""
FILLER = """
I use it for {use}.
It came [in a plain box|two days late|on a {weekday}|with a spare part that I have yet to need].
[I paid {price}|It was {price} when I ordered it]; it is [a little more|a little less] now.
There was a {maker} for {less} more in the same shop.
{family} uses it as well.
It stands in the hall when we don't need it.
I had it in {colour}, [though the green looked tempting|because nothing else was in stock|like the picture].
We are [two|three|four|five] people here, so it gets used.
The manual is [short|twelve pages of pictures|mostly about safety].
I wrote to the seller with a question and had an answer on {weekday}.
I have big hands, for what that is worth.
I'm comparing it with a {maker}, which cost about the same.
It has lived with us through {month} and {month2}.
There are two sizes; this is the larger one.
I ordered it [at midnight|during a train journey|on my phone], as one does.
Your mileage may vary.
I should say that we have hard water and three children.
I kept the receipt, just in case.
Not that I am counting, but that makes {span}.
Somebody asked about the guarantee: it is two years.
We moved house in between, so it has travelled a bit.
The parcel was twice the size it had to be.
I read reviews with the lowest stars first, always have.
{person} asked me what I think of it, so I may as well write it down here.
Had I known in {month} what I know now.
I wrote half of this in the car, sorry for the typing.
For the record, this is about the newer version.
I took photos but can't find where to add them.
Delivery was by the same man as always, on a {weekday}.
It is made somewhere near the sea, the label says.
We tried it for {use} first.
My budget was {price}, more or less.
I know someone who works for {maker}, so I try to be neutral.
It gets used about as often as the kettle.
"""
CATEGORY_FILLER = {
    "kitchen": "There are four of us and we cook most evenings.;Our worktop is small, so everything has to earn its place.;I bake on Saturdays and mostly soup the rest of the week.;It sits between the sink and the bread bin.",
    "electronics": "My phone is four years old, if that matters.;I work from home three days a week.;The cable in the box is about a metre long.;I did the update on the first evening.",
    "clothing": "I am 178 cm and usually take a medium.;It has been through the wash six times or so.;I ordered two sizes and compared them at the mirror.;I cycle in almost all weathers.",
    "home": "Our bedroom faces the street.;We live on the third floor without a lift.;I put it together on my own one evening.;It stands in the corner by the window.",
    "garden": "Our soil is heavy clay.;The shed is not quite dry, I admit.;I am 67 and do the garden on my own.;It rained for most of the trip.",
    "toys": "Ours are four and seven.;They got it for Christmas.;Grandma has one too, so there is something to compare.;We play on the carpet in the living room.",
    "pets": "Our dog is nine and sleeps most of the day.;The cats are brothers and weigh about five kilos each.;She is a rescue and does not like new things.;We have had pets for thirty years.",
}
CONCESSION = [
    "Yes, {a} But {b}",
    "{A} Still, {b}",
    "{A} On the other hand, {b}",
    "{A} Even so, {b}",
    "{A} That said, {b}",
    "I grant you this much: {a} All the same, {b}",
]
LINKS = [""] * 22 + ["Also, ", "And ", "Besides, ", "What is more, ", "By the way, ", "Oh, and "]
COLOURS = "blue grey black red".split()
WEEKDAYS = "Tuesday Wednesday Thursday Friday Saturday".split()

IRREGULAR = {
    "come": ("came", "come"), "break": ("broke", "broken"), "start": ("started", "started"), "stick": ("stuck", "stuck"), "give": ("gave", "given"),
    "burn": ("burnt", "burnt"), "bend": ("bent", "bent"), "split": ("split", "split"), "cut": ("cut", "cut"), "wear": ("wore", "worn"),
    "fall": ("fell", "fallen"), "freeze": ("froze", "frozen"), "swell": ("swelled", "swollen"), "tear": ("tore", "torn"), "let": ("let", "let"),
    "shrink": ("shrank", "shrunk"), "burst": ("burst", "burst"), "sink": ("sank", "sunk"), "grind": ("ground", "ground"), "go": ("went", "gone"),
    "reset": ("reset", "reset"),
}  # fmt: skip
DOUBLED = "strip drip jam slip chip snap drop unravel sag clog rip let cut split stop pop tip fit reset".split()
COMPARED = {
    "good": "better",
    "poor": "worse",
    "bad": "worse",
    "great": "better",
    "terrible": "worse",
    "awful": "worse",
    "hot": "hotter",
    "thin": "thinner",
    "flat": "flatter",
    "dim": "dimmer",
    "fresh": "fresher",
    "brittle": "more brittle",
    "stable": "more stable",
    "snug": "snugger",
    "lovely": "lovelier",
    "ugly": "uglier",
    "nasty": "nastier",
}
ER = "quiet narrow simple gentle shallow sturdy noisy".split()


def comparative(word: str) -> str:
    """The comparative of an adjective, as far as the products need it."""
    if word in COMPARED:
        return COMPARED[word]
    syllables = len(re.findall(r"[aeiouy]+", word.removesuffix("e")))
    if word.endswith("y") and syllables == 2:
        return word[:-1] + "ier"
    if word in ER or (
        syllables == 1
        and " " not in word
        and not word.endswith(("ed", "ing"))
        and word not in ("right", "wrong", "fresh")
    ):
        return word + ("r" if word.endswith("e") else "er")
    return f"more {word}"


def verb_forms(phrase: str) -> dict[str, str]:
    """Base, past, participle and -ing form of a verb phrase such as "come loose"."""
    verb, _, rest = phrase.partition(" ")
    if verb in IRREGULAR:
        past, participle = IRREGULAR[verb]
    else:
        stem = verb + verb[-1] if verb in DOUBLED and verb != "unravel" else verb
        past = participle = (
            stem + "d"
            if stem.endswith("e")
            else stem[:-1] + "ied"
            if re.search(r"[^aeiou]y$", stem)
            else stem + ("led" if verb == "unravel" else "ed")
        )
    if verb in DOUBLED:
        ing = verb + verb[-1] + "ing"
    else:
        ing = (
            verb[:-2] + "ying"
            if verb.endswith("ie")
            else (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb) + "ing"
        )
    tail = f" {rest}" if rest else ""
    return {"base": verb + tail, "past": past + tail, "part": participle + tail, "ing": ing + tail}


# ---------------------------------------------------------------- products


def read_products(text: str = PRODUCTS) -> list[dict]:
    """The products with their aspects (part, good, bad), faults (part, verb phrase) and tasks."""
    products = []
    for line in text.strip().splitlines():
        kind, rest = line[:2], line[2:]
        if kind == "= ":
            part, words = rest.split(": ")
            products[-1]["aspects"].append((part, *words.split(" / ")))
        elif kind == "! ":
            products[-1]["faults"].append(tuple(rest.split(": ")))
        elif kind == "> ":
            products[-1]["tasks"].append(rest)
        else:
            category, name, prices, uses = line.split(" | ")
            low, high = map(int, prices.split())
            products.append(
                {
                    "category": category,
                    "name": name,
                    "low": low,
                    "high": high,
                    "uses": uses.split("; "),
                    "aspects": [],
                    "faults": [],
                    "tasks": [],
                }
            )
    return products


# ---------------------------------------------------------------- one review


class Writer:
    """Writes one review about one product; remembers what has been used so that nothing is said twice."""

    def __init__(self, rng: random.Random, product: dict):
        self.rng, self.product, self.used = rng, product, set()
        price = rng.randrange(product["low"], product["high"])
        makers = rng.sample(MAKERS, 3)
        months = rng.sample(sorted(set(MONTHS)), 2)
        self.price, self.rivals = price, makers
        self.fixed = {
            "product": product["name"], "price": f"{price} euros" if rng.random() < 0.75 else rng.choice([f"{price}.99", f"{price} pounds"]),
            "less": f"{rng.choice([5, 8, 10, 12, 15, 20])} euros", "month": months[0], "month2": months[1],
        }  # fmt: skip
        self.family, self.people = rng.choice(FAMILY), rng.sample(PEOPLE, 3)
        self.topics = {
            "aspect": rng.sample(product["aspects"], len(product["aspects"])),
            "general": rng.sample(GENERAL, 4),
            "fault": rng.sample(product["faults"], len(product["faults"])),
            "task": rng.sample(product["tasks"], len(product["tasks"])),
        }

    def fill(self, frames: str, **words: str) -> str:
        """One of the frames that was not used yet, with its choices made and its places filled."""
        lines = [line for line in frames.strip().splitlines() if line not in self.used]
        if words.get("T") in UNCHANGING:
            lines = [line for line in lines if not line.startswith("~")]
        if not words.get("CT", "-"):
            lines = [line for line in lines if "{CT}" not in line and "{CO}" not in line]
        frame = self.rng.choice(lines)
        self.used.add(frame)
        frame = frame.removeprefix("~")
        while "[" in frame:
            frame = re.sub(
                r"\[([^\[\]]*)\]", lambda found: self.rng.choice(found[1].split("|")), frame
            )
        values = self.fixed | {
            "maker": self.rng.choice(self.rivals), "span": self.rng.choice(SPANS), "use": self.rng.choice(self.product["uses"]),
            "person": self.rng.choice(self.people), "family": self.family, "weekday": self.rng.choice(WEEKDAYS), "colour": self.rng.choice(COLOURS),
        }  # fmt: skip
        return finish(frame.format(**values | words))

    def opinion(self, good: bool) -> str:
        """One thing that is good, or bad, about the product."""
        kinds = [
            kind
            for kind, weight in (("aspect", 4), ("general", 4), ("fault", 3), ("task", 3))
            for _ in range(weight)
            if self.topics[kind]
        ]
        kind = self.rng.choice(kinds)
        topic = self.topics[kind].pop()
        if kind == "task":
            plain, turned = (TASK_GOOD_PLAIN, TASK_GOOD) if good else (TASK_BAD_PLAIN, TASK_BAD)
            return self.fill(self.either(plain, turned), task=topic)
        words = about(topic[0])
        if kind == "fault":
            plain, turned = (FAULT_GOOD_PLAIN, FAULT_GOOD) if good else (FAULT_BAD_PLAIN, FAULT_BAD)
            return self.fill(self.either(plain, turned), **words, **verb_forms(topic[1]))
        meant, opposite = topic[1:] if good else topic[:0:-1]
        compared = not {meant, opposite} & NOT_COMPARED
        words |= {
            "T": meant,
            "O": opposite,
            "CT": comparative(meant) if compared else "",
            "CO": comparative(opposite) if compared else "",
        }
        return self.fill(
            self.rng.choices([ASPECT_DIRECT, ASPECT_OPPOSED, ASPECT_PAIRED], ASPECT_SHARES)[0],
            **words,
        )

    def either(self, plain: str, turned: str) -> str:
        """The plain frames as long as one of them is unused, or the turned ones, at three to two."""
        unused = any(line not in self.used for line in plain.strip().splitlines())
        return plain if unused and self.rng.random() < 0.6 else turned

    def filler(self) -> str:
        own = [
            line
            for line in CATEGORY_FILLER[self.product["category"]].split(";")
            if line not in self.used
        ]
        if own and self.rng.random() < 0.3:
            return self.fill("\n".join(own))
        return self.fill(FILLER)

    def review(self, good: bool, stars: int) -> str:
        """The whole text. Stars say how much of it speaks against the label."""
        rng = self.rng
        against = {1: 0.0, 2: 0.1, 3: 0.3, 4: 0.1, 5: 0.0}[stars]
        count = min(11, 1 + int(rng.lognormvariate(0.2, 0.95)))
        body, left = [], count
        while left > 0:
            if left >= 2 and rng.random() < against * 1.6:
                # what speaks against the verdict is granted first, and then outweighed
                first, second = self.opinion(not good), self.opinion(good)
                concession = rng.choice([form for form in CONCESSION if form not in self.used])
                self.used.add(concession)
                body.append(
                    concession.format(
                        a=lower_first(first) if "{a}" in concession else "",
                        A=first,
                        b=lower_first(second),
                    )
                )
                left -= 2
            else:
                link = rng.choice(LINKS) if body else ""
                sentence = self.opinion(good)
                body.append(
                    link + lower_first(sentence) if link and link not in self.used else sentence
                )
                self.used.add(link)
                left -= 1
            if rng.random() < 0.2:
                body.append(self.filler())
        if rng.random() < min(0.8, 0.15 + 0.15 * count):
            body.insert(0, self.fill(OPENING))
        if rng.random() < 0.4:
            verdict = self.fill(VERDICT_GOOD if good else VERDICT_BAD)
            if count > 1 and rng.random() < 0.2:
                start = rng.choice(["Short version: ", "In short: ", "", ""])
                body.insert(0, start + lower_first(verdict) if start else verdict)
            else:
                body.append(verdict)
        if rng.random() < 0.75:
            body.insert(
                0,
                self.fill(
                    "\n".join(
                        pair.split(" / ")[0 if good else 1]
                        for pair in HEADLINES.strip().splitlines()
                    )
                ),
            )
        return styled(" ".join(body), rng)


NOT_COMPARED = set(
    "right wrong perfect ample useless hopeless exact random curled faded warped endless unreadable padded lasting effective squashed rounded roaring positive negative".split()
) | {"washed out"}
UNCHANGING = set(
    "long short wide narrow roomy tiny small deep shallow light heavy generous mean thick thin padded big handy clumsy cramped right wrong".split()
)
NO_ARTICLE = set(
    "cleaning boiling washing assembly pairing typing pitching charging ventilation steering".split()
) | {"battery life", "page turns"}
ASPECT_SHARES = (0.45, 0.4, 0.15)


def about(part: str) -> dict[str, str]:
    """How a sentence speaks of a part: with or without article, in the singular or the plural."""
    many = part.endswith("s") and not part.endswith(("ss", "focus"))
    name = part if part in NO_ARTICLE else f"the {part}"
    return {
        "s": name, "S": name[0].upper() + name[1:], "is": "are" if many else "is", "was": "were" if many else "was", "has": "have" if many else "has",
        "isnt": "are not" if many else "is not", "hasnt": "have not" if many else "has not", "they": "they" if many else "it",
        "Is": "Are" if many else "Is", "They": "They" if many else "It", "them": "them" if many else "it", "theirs": "theirs",
    }  # fmt: skip


def lower_first(sentence: str) -> str:
    """The sentence as it stands inside another one; I and names keep their capital."""
    word = re.match(r"[\w'-]+", sentence)[0]
    keep = (
        word in ("I", "I'm", "I'd") or word in MAKERS or word in MONTHS or sentence.startswith("I ")
    )
    return sentence if keep else sentence[0].lower() + sentence[1:]


def finish(text: str) -> str:
    """Capitals at the beginning of sentences, a or an, one full stop."""
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIO](?!ne\b|uro|se))", r"\1n ", text)
    text = re.sub(
        r"([.?]) ([a-z])",
        lambda found: f"{found[1]} {found[2].upper()}",
        text[0].upper() + text[1:],
    )
    return re.sub(r"\.\.+", ".", text)


CONTRACTIONS = [
    (r"\b(is|are|was|were|has|have|did|does|do|could|would|had) not\b(?=[ .,;])", r"\1n't"), (r"\bwill not\b", "won't"),
    (r"\bI would(?= [a-z])", "I'd"), (r"\bI am(?= [a-z])", "I'm"), (r"\b([Ii])t is(?= [a-z])", r"\1t's"),
    (r"\bI have(?= (?:had|given|never|yet|seen)\b)", "I've"), (r"\b([Tt])hat is(?= [a-z])", r"\1hat's"),
]  # fmt: skip
MISSPELT = {
    "definitely": "definately", "received": "recieved", "comfortable": "comfortible", "because": "becuase", "really": "realy", "that": "taht",
    "friend": "freind", "surprisingly": "suprisingly", "expected": "expexted", "which": "wich", "though": "tho", "replacement": "replacment",
    "disappointed": "dissapointed", "disappointment": "dissapointment", "disappoint": "dissapoint", "a lot": "alot", "than": "then",
    "description": "discription", "beginning": "begining", "believe": "beleive", "recommend": "reccomend", "their": "thier", "without": "witout",
}  # fmt: skip


def styled(text: str, rng: random.Random) -> str:
    """The text as one person types: with or without contractions, capitals and care."""
    if rng.random() < 0.6:
        for pattern, short in CONTRACTIONS:
            text = re.sub(pattern, short, text)
    if rng.random() < 0.2:
        for _ in range(rng.choice([1, 1, 2, 3])):
            text = mistyped(text, rng)
    if rng.random() < 0.06:
        text = (
            text.replace("n't", "nt")
            .replace("I'm", "Im")
            .replace("I'd", "Id")
            .replace("I've", "Ive")
        )
    if rng.random() < 0.08:
        text = text.lower()
    if rng.random() < 0.1:
        text = text.removesuffix(".")
    return text


def mistyped(text: str, rng: random.Random) -> str:
    """The text with one slip: a word that is often misspelt, else two letters swapped, one dropped or one doubled."""
    usual = [word for word in MISSPELT if re.search(rf"\b{word}\b", text)]
    if usual and rng.random() < 0.5:
        word = rng.choice(usual)
        return re.sub(rf"\b{word}\b", MISSPELT[word], text, count=1)
    places = [found.start() for found in re.finditer(r"(?<=[a-z])[a-z](?=[a-z]{2})", text)]
    if not places:
        return text
    at = rng.choice(places)
    slip = rng.choice([text[at + 1] + text[at], text[at + 1], text[at] * 2 + text[at + 1]])
    return text[:at] + slip + text[at + 2 :]


# ---------------------------------------------------------------- all reviews


def make_reviews(count: int = REVIEWS, seed: int = SEED) -> list[dict]:
    """`count` different reviews, half of them positive; the same for the same seed."""
    rng = random.Random(seed)
    products, reviews, seen = read_products(), [], set()
    while len(reviews) < count:
        good = len(reviews) % 2 == 0
        stars = rng.choices([5, 4, 3] if good else [1, 2, 3], [45, 38, 17])[0]
        product = rng.choice(products)
        text = Writer(rng, product).review(good, stars)
        if text not in seen and len(re.findall(r"\w+|[^\w\s]", text)) >= 5:
            seen.add(text)
            reviews.append(
                {"text": text, "label": int(good), "stars": stars, "category": product["category"]}
            )
    rng.shuffle(reviews)
    return reviews


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("reviews.jsonl")
    path.write_text(
        "".join(json.dumps(review) + "\n" for review in make_reviews()),
        encoding="utf-8",
        newline="\n",
    )


if __name__ == "__main__":
    main()
