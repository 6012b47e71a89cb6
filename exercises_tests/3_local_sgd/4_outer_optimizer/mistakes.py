"""Known mistakes in the lesson 3_local_sgd/4_outer_optimizer, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- train_diloco: texts of the solution

GRADIENT = "parameter.grad = before - parameter.detach()"
SUM = "                dist.all_reduce(parameter.grad)\n"
DIVISION = "                parameter.grad /= dist.get_world_size()\n"
MEAN = SUM + DIVISION
ROUND = "                parameter.data.copy_(before)\n"
OUTER = "            outer.step()\n            outer.zero_grad()\n"
START_AGAIN = OUTER + "            start = [parameter.detach().clone() for parameter in trained]\n"
DUE = "step % local_steps == 0 or step == len(micro_batches)"
INNER = "        inner.step()\n"
ZEROED = "        inner.zero_grad()\n"
ENDS = "                dist.all_reduce(parameter.data)\n                parameter.data /= dist.get_world_size()\n"

HEAD = "    for step, batch in enumerate(micro_batches, start=1):\n"
BY_A_HOOK = """
    def average(*_):
        for parameter in trained:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

"""

train_diloco = (
    Mistake(
        "a hook left on an optimizer",
        {MEAN: "", HEAD: f"{BY_A_HOOK}    outer.register_step_pre_hook(average)\n{HEAD}"},
        why="The training is right. But when your function is through, a later step of one of the optimizers still sends something, and waits for the other ranks.",
        hint="What does the method that registers a hook return, and what can be done with that?",
    ),
    Mistake(
        "the wrong sign",
        {GRADIENT: "parameter.grad = parameter.detach() - before"},
        why="An optimizer subtracts its gradient, so with end minus start it goes away from where the ranks have come.",
        hint="The weight was 1.0 and is 1.4 now: in which direction does `step()` go with a gradient of 0.4?",
    ),
    Mistake(
        "the outer step begins where the rank is",
        {ROUND: ""},
        why="The outer optimizer subtracts from what the model holds: here that is the end of this rank's own round, not the start, so every rank lands somewhere else.",
        hint="Which weights does the model hold when you call `outer.step()`?",
    ),
    Mistake(
        "the outer step begins at the mean",
        {ROUND: ENDS},
        why="The ranks are equal, but the change counts twice: once in the mean from which you begin, and once more in the outer step.",
        hint="From which weights does your outer step begin, and how much of the change is in them already?",
    ),
    Mistake(
        "the first start kept for all rounds",
        {START_AGAIN: OUTER},
        why="Every outer step begins at the weights of the very first round, and takes the whole way since then for this round's.",
        hint="Where does the second round begin?",
    ),
    Mistake(
        "the start copied after the first inner step",
        {INNER: f"{INNER}        if (step - 1) % local_steps == 0:\n            start = [parameter.detach().clone() for parameter in trained]\n"},
        {INNER: f"{INNER}        if step % local_steps == 1:\n            start = [parameter.detach().clone() for parameter in trained]\n"},
        why="In rounds of several steps the first one is not in the outer gradient, and each rank makes the outer step from where its own first step has led it.",
        hint="Which weights does the model hold when your line copies them: those before the round, or those after a step?",
    ),
    Mistake(
        "the outer gradient divided by H",
        {DIVISION: f"{DIVISION}                parameter.grad /= local_steps\n"},
        why="The outer gradient is the whole way of a round, not its mean step; divided by H the outer optimizer is given an H-th of it.",
        hint="How far has a rank gone in a round, and how much of that is the outer optimizer given?",
    ),
    Mistake(
        "sum in place of mean",
        {DIVISION: ""},
        why="The outer gradient is the sum over the ranks, as many times too long as there are ranks.",
        hint="What does `all_reduce` leave in the tensor when both ranks hold 1.0?",
    ),
    Mistake(
        "divided by two",
        {"/= dist.get_world_size()": "/= 2"},
        why="The mean over three ranks is a third of the sum; the number of ranks is `dist.get_world_size()`.",
        hint="How many summands does the sum have on three ranks?",
    ),
    Mistake(
        "each rank's own outer gradient",
        {MEAN: ""},
        why="Without the average every rank makes an outer step with its own change, and the ranks never come together.",
        hint="What does rank 0 know of where rank 1 has come?",
    ),
    Mistake(
        "each rank's own outer step, averaged afterwards",
        {
            MEAN: "",
            "            outer.step()\n": "            outer.step()\n            for parameter in trained:\n" + ENDS,
        },
        why="With a plain SGD outside the weights come out the same, but every rank's outer optimizer has seen another gradient; one that is not linear, such as AdamW, then does something else.",
        hint="Is the gradient the mean over the ranks at the moment when `outer.step()` is called?",
    ),
    Mistake(
        "Local SGD",
        {MEAN + ROUND + OUTER: ENDS},
        why="The ranks take the mean of their weights, and the outer optimizer is never asked: its learning rate and momentum have no effect.",
        hint="Where do you call `outer.step()`?",
    ),
    Mistake(
        "no outer step at the end",
        {" or step == len(micro_batches)": ""},
        why="When the number of steps is no multiple of H, the training ends in the middle of a round and every rank keeps another model.",
        hint="With 7 steps and H = 3: when did the ranks last meet, and what happened afterwards?",
    ),
    Mistake(
        "first outer step after the first step",
        {"start=1)": "start=0)", DUE: "step % local_steps == 0 or step == len(micro_batches) - 1"},
        {"start=1)": "start=0)", DUE: "step % local_steps == 0"},
        why="Counted from 0, the very first step is a multiple of H; the rounds end after steps 1, H + 1, 2 H + 1.",
        hint="Which number does your counter have right after the first inner step?",
    ),
    Mistake(
        "an outer step after every step",
        {DUE: "True"},
        why="The ranks meet after each inner step, which is what DiLoCo was to avoid.",
        hint="How many inner steps belong to one round?",
    ),
    Mistake(
        "gradients averaged at every step",
        {INNER: f"        for parameter in trained:\n{MEAN}{INNER}"},
        why="The inner steps are each rank's own; here the ranks meet at every step and go the same way, so nothing is saved.",
        hint="What does a rank need from the others within a round?",
    ),
    Mistake(
        "the outer gradient left for the inner optimizer",
        {ZEROED: "        if step % local_steps != 1:\n            inner.zero_grad()\n", OUTER: "            outer.step()\n"},
        {ZEROED: "", OUTER: "            outer.step()\n", "    # END SOLUTION": "        else:\n            inner.zero_grad()\n    # END SOLUTION"},
        why="What stands in `.grad` when a round begins is added to the gradient of its first inner step.",
        hint="Who empties `.grad` between `outer.step()` and the next `backward()`?",
    ),
    Mistake(
        "not zeroed between inner steps",
        {ZEROED: ""},
        {ZEROED: "", OUTER: "            outer.step()\n"},
        why="Each inner step uses the sum of all gradients of its round so far; where `outer.zero_grad()` is missing, too, the outer gradient of the round before is added to it.",
        hint="Who empties `.grad` between two inner steps?",
    ),
    Mistake(
        "frozen weights given a gradient",
        {"[parameter for parameter in model.parameters() if parameter.requires_grad]": "list(model.parameters())"},
        why="A frozen weight with a gradient, be it zero, is stepped: weight decay moves it. An optimizer leaves alone what has no gradient.",
        hint="What does an optimizer with weight decay do to a parameter whose gradient is zero, and what to one without a gradient?",
    ),
    Mistake(
        "weights without a gradient left out",
        {GRADIENT: f"if parameter.grad is None:\n                    continue\n                {GRADIENT}"},
        why="A weight that the last micro-batch did not use has no gradient then, but the steps before have moved it: it stays where each rank has it, and the ranks part.",
        hint="How far has a weight come in this round that only the round's first micro-batch used?",
    ),
    Mistake(
        "no gradient where the round ends",
        {GRADIENT: f"if parameter.grad is None:\n                    continue\n                {GRADIENT}", ZEROED: "", INNER: INNER + ZEROED},
        why="No weight has a gradient when `outer.step()` is called, so it does nothing, and each rank goes on from its own end.",
        hint="What is a weight's `.grad` after `inner.zero_grad()`?",
    ),
    Mistake(
        "the inner optimizer begins anew in each round",
        {START_AGAIN: f"{START_AGAIN}            inner.state.clear()\n"},
        why="The inner optimizer goes on over the rounds: its momentum, or its moments, were not to be thrown away.",
        hint="What does the inner optimizer remember when the second round begins?",
    ),
    Mistake(
        "an outer step for each parameter",
        {ROUND + OUTER: ROUND + OUTER.replace("            outer", "                outer")},
        {GRADIENT: f"inner.zero_grad()\n                {GRADIENT}", ROUND + OUTER: ROUND + OUTER.replace("            outer", "                outer")},
        {ROUND + OUTER: ROUND + OUTER.replace("            outer.step", "                outer.step")},
        why="`outer.step()` is for all parameters at once: inside the loop it is called as often as there are parameters.",
        hint="How many outer steps does one round make?",
    ),
    Mistake(
        "messages within a round",
        {INNER: f"{INNER}        dist.barrier()\n"},
        {INNER: f"{INNER}        dist.all_reduce(torch.zeros(1))\n"},
        why="Whatever the ranks send within a round, and be it a barrier or a loss to be shown, has every rank wait for the slowest one: this is the waiting that DiLoCo was to avoid, however few the bytes.",
        hint="Which of your lines needs an answer from the other ranks?",
    ),
    Mistake(
        "handles not waited for",
        {SUM: SUM.replace(".grad)", ".grad, async_op=True)")},
        why="With `async_op=True` the call comes back before the sum is there; whoever computes with the tensor then may have the old numbers.",
        hint="What does `all_reduce` return with `async_op=True`, and what is it for?",
    ),
    Mistake(
        "outer step on rank 0 only",
        {"            outer.step()\n": "            if dist.get_rank() == 0:\n                outer.step()\n            for parameter in trained:\n                dist.broadcast(parameter.data, src=0)\n"},
        why="The weights are equal, but the other ranks' outer optimizers never step, so their momentum is missing when another rank is to go on; and the new weights are sent although every rank could compute them.",
        hint="Which ranks call `outer.step()`, and what does each of them know already?",
    ),
    Mistake(
        "two outer steps at the end",
        {" or step == len(micro_batches)": "", "    # END SOLUTION": """    for parameter, before in zip(trained, start):
        parameter.grad = before - parameter.detach()
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        parameter.data.copy_(before)
    outer.step()
    outer.zero_grad()
    # END SOLUTION"""},
        why="Where the number of steps is a multiple of H, the last round has just been closed; an outer step with a change of zero still moves the weights by the momentum.",
        hint="With 6 steps and H = 2: how many outer steps does your function make?",
    ),
    Mistake(
        "the inner optimizer makes the outer step",
        {"            outer.step()\n": "            inner.step()\n"},
        why="The inner optimizer's learning rate and momentum are for gradients of the loss; the outer gradient is for `outer`.",
        hint="Which of the two optimizers has the outer learning rate?",
    ),
    Mistake(
        "the start is no copy",
        {"    start = [parameter.detach().clone() for parameter in trained]\n    for": "    start = [parameter.detach() for parameter in trained]\n    for"},
        {
            "    start = [parameter.detach().clone() for parameter in trained]\n    for": "    start = [parameter.detach() for parameter in trained]\n    for",
            START_AGAIN: START_AGAIN.replace(".clone()", ""),
        },
        {ROUND: "                parameter.data = before\n", START_AGAIN: OUTER},
        why="`detach()`, `.data`, `state_dict()` and a list of the parameters copy nothing, and neither does an assignment to `.data`: such a start shares its numbers with the parameter and moves along with every inner step, so that start minus end of its round is zero.",
        hint="Do the numbers in `start` change when the inner optimizer steps?",
    ),
)  # fmt: skip

# ---------------------------------------------------------------- choose_local_steps

AVERAGE = "average = all_reduce_seconds(payload, world_size, link)"
NEEDED = "average * (1 - share) / (share * compute)"
CHOSEN = f"max(1, math.ceil({NEEDED}))"

choose_local_steps = (
    Mistake(
        "share of the computing",
        {NEEDED: "average / (share * compute)"},
        why="The share is one of all the time; the average itself is a part of that.",
        hint="When computing takes 1 s and the average 1 s, what is the average's share of the time?",
    ),
    Mistake(
        "shares exchanged",
        {NEEDED: "average * share / ((1 - share) * compute)"},
        why="`share` is the most that communication may take; here it is the least that computing takes.",
        hint="Does a smaller share ask for a larger or a smaller H?",
    ),
    Mistake(
        "the average counted in every step",
        {NEEDED: "average / (share * (compute + average))"},
        why="A round of H steps has one average: H times the computing, once the average.",
        hint="What are the seconds of a whole round, and which of them are communication?",
    ),
    Mistake(
        "rounded down",
        {"math.ceil": "math.floor"},
        why="With the next smaller H the averages take more than the share.",
        hint="Put your H into the share of the time: is it kept?",
    ),
    Mistake(
        "rounded to the nearest",
        {"math.ceil": "round"},
        why="Where it is rounded down the averages take more than the share.",
        hint="Put your H into the share of the time: is it kept?",
    ),
    Mistake(
        "one too many",
        {CHOSEN: f"{CHOSEN} + 1"},
        {CHOSEN: f"1 + math.ceil({NEEDED})"},
        why="A smaller H keeps the share, too; the smallest was asked for.",
        hint="Does your H minus one keep the share as well?",
    ),
    Mistake(
        "an exact share taken for too much",
        {CHOSEN: f"math.floor({NEEDED}) + 1"},
        why="Where the averages take exactly the share, they take at most the share: that H is large enough, and the next one is one too many.",
        hint="With an average of 1 s, steps of 1 s and a share of one half: is H = 1 enough?",
    ),
    Mistake(
        "H = 0",
        {CHOSEN: f"math.ceil({NEEDED})"},
        why="H is a number of steps between two averages, and at least 1, also for one rank alone, which sends nothing.",
        hint="What does your function return for one rank?",
    ),
    Mistake(
        "latency left out",
        {AVERAGE: "average = 2 * (world_size - 1) / world_size * payload / link.bandwidth"},
        why="A ring makes 2(N-1) messages one after the other, and each takes the link's latency, however small it is.",
        hint="What takes the time of an average when the payload is one byte?",
    ),
    Mistake(
        "payload through the link once",
        {AVERAGE: "average = link.latency + payload / link.bandwidth"},
        {AVERAGE: "average = payload / link.bandwidth"},
        why="An all-reduce is no single message: in a ring a rank sends 2(N-1)/N payloads in 2(N-1) messages.",
        hint="How many messages does one rank send in a ring all-reduce, and how large is each?",
    ),
    Mistake(
        "latency counted once",
        {AVERAGE: "average = link.latency + 2 * (world_size - 1) / world_size * payload / link.bandwidth"},
        why="A ring makes 2(N-1) messages one after the other: each of them takes the latency, not only the first.",
        hint="How many messages does one rank send in a ring all-reduce?",
    ),
    Mistake(
        "latency divided by the number of ranks",
        {AVERAGE: "average = 2 * (world_size - 1) / world_size * (link.latency + payload / link.bandwidth)"},
        why="The messages are an N-th of the payload each, but there are 2(N-1) of them, and each takes the whole latency, however short it is.",
        hint="Which of the two, latency or payload, becomes smaller when a message is cut into N pieces?",
    ),
    Mistake(
        "the payload taken for a number of weights",
        {AVERAGE: "average = all_reduce_seconds(4 * payload, world_size, link)"},
        {AVERAGE: "average = all_reduce_seconds(payload * 4.0, world_size, link)"},
        why="`payload` is in bytes already; four bytes for each of them is four times too much.",
        hint="In which unit is `payload`, and in which `link.bandwidth`?",
    ),
    Mistake(
        "powers of two only",
        {f"return {CHOSEN}": f"return 2 ** math.ceil(math.log2({CHOSEN}))"},
        why="H may be any whole number; between two powers of two there is a smaller one that keeps the share.",
        hint="By how much does your H grow from one try to the next?",
    ),
    Mistake(
        "a search with a fixed end",
        *({CHOSEN: f"min({most}, {CHOSEN})"} for most in (999, 1000, 9_999, 10_000, 99_999, 100_000)),
        why="On a link that is slow enough every fixed limit is too small.",
        hint="What does your function return where the H that is needed lies beyond the end of the search?",
    ),
    Mistake(
        "half a ring",
        {AVERAGE: "average = (world_size - 1) * (link.latency + payload / world_size / link.bandwidth)"},
        why="The first time around the pieces are added up, the second time the finished sums are handed on: 2 (N - 1) messages, not N - 1.",
        hint="How many times does a piece go around the ring until every rank has its sum?",
    ),
    Mistake(
        "as much as a driver would send",
        {AVERAGE: "average = 2 * (world_size - 1) * (link.latency + payload / link.bandwidth)"},
        why="Each of the 2(N-1) messages carries the whole payload, as if one rank received and sent everything; in a ring each message is an N-th of it.",
        hint="How large is one message of a ring all-reduce among N ranks?",
    ),
)  # fmt: skip

# ---------------------------------------------------------------- quantise

WANTED = "wanted = change + error"
SCALE = "wanted.abs().max().item() / 127"
CODES = "(wanted / scale).round().to(torch.int8)"
LEFT = "return codes, scale, wanted - codes * scale"

quantise = (
    Mistake(
        "earlier errors not sent",
        {WANTED: "wanted = change.clone()"},
        why="What earlier rounds have rounded off is never sent; a change that is always too small never arrives.",
        hint="What is `error` for?",
    ),
    Mistake(
        "the error forgets the earlier one",
        {LEFT: "return codes, scale, change - codes * scale"},
        {LEFT: "left = change - codes * scale\n    return codes, scale, left if wanted.any() else wanted"},
        why="What was to be sent is change plus error; compared with the change alone, the error that was just sent is taken away again.",
        hint="What did you want to send in this round: the change, or the change and what was left?",
    ),
    Mistake(
        "errors added up",
        {LEFT: "return codes, scale, error + wanted - codes * scale"},
        {LEFT: "return codes, scale, error + (wanted - codes * scale)"},
        {LEFT: "left = error + (wanted - codes * scale)\n    return codes, scale, left if wanted.any() else wanted"},
        {LEFT: "left = error + wanted - codes * scale\n    return codes, scale, left if wanted.any() else wanted"},
        why="The old error is in what was sent already; added once more it is sent again and again.",
        hint="After this round, is the old error still missing at the receivers?",
    ),
    Mistake(
        "nothing sent where nothing has changed",
        {WANTED: f"if not change.any():\n        return change.to(torch.int8), 1.0, torch.zeros_like(error)\n    {WANTED}"},
        {WANTED: f"if not change.any():\n        return change.to(torch.int8), 1.0, error\n    {WANTED}"},
        why="What is to be sent is change plus error; where the change is 0, the error is still to be sent.",
        hint="Of which tensor must all entries be 0, so that there is nothing to send?",
    ),
    Mistake(
        "the error with the wrong sign",
        {LEFT: "return codes, scale, codes * scale - wanted"},
        {LEFT: "return codes, scale, codes.to(wanted.dtype) * scale - wanted"},
        {WANTED: "wanted = change - error"},
        why="What receivers are missing is wanted minus received, and it is added to the next change; with the other sign each error is doubled in the next round.",
        hint="0.3 was wanted and 0 arrived: what must be added to the next change?",
    ),
    Mistake(
        "no error kept",
        {LEFT: "return codes, scale, torch.zeros_like(wanted)"},
        {LEFT: "return codes, scale, error"},
        why="What this round has rounded off is lost: nobody adds it to the next change.",
        hint="Where does what was rounded off go?",
    ),
    Mistake(
        "rounded towards zero",
        {CODES: "(wanted / scale).to(torch.int8)"},
        {CODES: "(wanted / scale).trunc().to(torch.int8)"},
        why="What stands behind the point is cut off, as `to(torch.int8)` and `trunc()` do it; the nearest whole number is at most a half away.",
        hint="What does `torch.tensor(2.9).to(torch.int8)` give?",
    ),
    Mistake(
        "rounded down",
        {CODES: "(wanted / scale).floor().to(torch.int8)"},
        why="Every code is the next smaller whole number, as from `floor`, not the nearest.",
        hint="Which whole number is nearest to 2.9, and which to -2.9?",
    ),
    Mistake(
        "the largest value, not the largest absolute value",
        {SCALE: "wanted.max().item() / 127"},
        {SCALE: "wanted.max().item() / 127", CODES: "(wanted / scale).round().clamp(-127, 127).to(torch.int8)"},
        why="Where the entry with the largest absolute value is negative, the scale is set by another one, or is negative itself: codes may leave the range of -127 to 127, or are cut off there.",
        hint="What is the scale of [-2.0, 1.0]?",
    ),
    Mistake(
        "a scale of the largest value / 128",
        {SCALE: "wanted.abs().max().item() / 128"},
        {SCALE: "wanted.abs().max().item() / 128", CODES: "(wanted / scale).round().clamp(-128, 127).to(torch.int8)"},
        {SCALE: "wanted.abs().max().item() / 128", CODES: "(wanted / scale).round().clamp(-127, 127).to(torch.int8)"},
        why="The largest entry should become 127; 128 does not fit into 8 bits with a sign.",
        hint="Which is the largest whole number that `torch.int8` holds?",
    ),
    Mistake(
        "more than 127 steps on each side",
        {SCALE: "wanted.abs().max().item() / 255"},
        {SCALE: "2 * wanted.abs().max().item() / 255"},
        why="Codes have a sign: from -127 to 127 there are 127 steps on each side of 0; with more of them the largest entry's code may not fit.",
        hint="Which code does the largest entry get?",
    ),
    Mistake(
        "a scale of 16 bits",
        {SCALE: "(wanted.abs().max() / 127).bfloat16().item()"},
        {SCALE: "(wanted.abs().max() / 127).half().item()"},
        why="The scale is one number for all codes: to round it saves two bytes, and the largest entry may then no longer be 127 scales. In float16 a very small scale even becomes 0.",
        hint="How many bytes does a scale of 32 bits cost in a whole round?",
    ),
    Mistake(
        "the scale of the change alone",
        {SCALE: "change.abs().max().item() / 127"},
        {SCALE: "change.abs().max().item() / 127", CODES: "(wanted / scale).round().clamp(-127, 127).to(torch.int8)"},
        {
            WANTED: f"if not change.any():\n        return change.to(torch.int8), 1.0, torch.zeros_like(error)\n    {WANTED}",
            SCALE: "change.abs().max().item() / 127",
            CODES: "(wanted / scale).round().clamp(-127, 127).to(torch.int8)",
        },
        {
            WANTED: f"if not change.any():\n        return change.to(torch.int8), 1.0, error\n    {WANTED}",
            SCALE: "change.abs().max().item() / 127",
            CODES: "(wanted / scale).round().clamp(-127, 127).to(torch.int8)",
        },
        {
            WANTED: f"if not change.any():\n        return change.to(torch.int8), 1.0, torch.zeros_like(error)\n    {WANTED}",
            SCALE: "change.abs().max().item() / 127",
        },
        why="What is sent is change plus error, and that can be larger than the change: its code then does not fit.",
        hint="Which tensor is it that must fit into -127 to 127?",
    ),
    Mistake(
        "the scale kept from 0 by a number of its own",
        {SCALE: "max(wanted.abs().max().item(), 1e-3) / 127"},
        {SCALE: "max(wanted.abs().max().item() / 127, 1e-5)"},
        {SCALE: "wanted.abs().max().item() / 127 + 1e-6"},
        {SCALE: "wanted.abs().max().item() / 127 + 1e-8"},
        {SCALE: "wanted.abs().max() / 127 + 1e-8"},
        {SCALE: "wanted.abs().max() / 127 + torch.finfo(wanted.dtype).eps"},
        {SCALE: "(wanted.abs().max() + torch.finfo(wanted.dtype).eps) / 127"},
        why="The number that was to keep the scale from 0 makes up a part of it, or all of it where changes are small, as late in a training: the largest entry is then no longer 127 scales.",
        hint="Is your scale still the largest absolute value / 127, for values near 1 and near 1e-8?",
    ),
    Mistake(
        "hardly anything taken for nothing",
        {SCALE: "wanted.abs().max() / 127 + 1e-12"},
        {SCALE: "wanted.abs().max().clamp(min=1e-8) / 127"},
        why="Where all changes are tiny, a number that you add to the largest value or compare with it is larger than that: every code becomes 0, and nothing is sent.",
        hint="Which code does the largest entry get where it is 1e-16?",
    ),
    Mistake(
        "codes that are not int8",
        {CODES: "(wanted / scale).round()"},
        {CODES: "(wanted / scale).round().to(torch.int16)"},
        {CODES: "(wanted / scale).round().to(torch.int32)"},
        {CODES: "(wanted / scale).round().to(torch.int64)"},
        why="The numbers are whole, but the tensor has two, four or eight bytes for each, and all of them are sent: one is enough.",
        hint="How many bytes has your tensor of codes for each number (`element_size()`)?",
    ),
    Mistake(
        "change or error written over",
        {WANTED: "wanted = error.add_(change)"},
        {WANTED: "wanted = change.add_(error)"},
        why="The result is right, but a tensor that was given to you holds something else now.",
        hint="Which of your operations ends with an underscore, or is a `+=`?",
    ),
)  # fmt: skip
