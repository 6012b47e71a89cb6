"""Local SGD as a script: the same training as in the lessons of unit 3, for one machine or several.

    torchrun --nproc_per_node 2 scripts/train_local_sgd.py

Every process trains a replica on its own micro-batches; after every `--local-steps` optimizer steps, and once at the end,
the replicas' parameters are averaged. Process r of N takes the micro-batches r, r + N, r + 2N, ... of the reviews in their
order. GPUs are used where every process has one (nccl), else the processor (gloo).
"""

import argparse
import os

import torch
import torch.distributed as dist

from trainlean import batches, load_reviews, small_bert


def main():
    options = parse_options()
    device = join()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    model = small_bert(seed=0).to(device)  # the same seed everywhere: the replicas begin alike
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    reviews = load_reviews(options.data)[: options.reviews]
    mine = batches(
        reviews, options.micro_batch, max_length=options.max_length, shuffle=False, drop_last=True
    )
    mine = mine[: len(mine) // world_size * world_size][
        rank::world_size
    ]  # as many for every rank: one that has none left would be waited for in vain

    steps = averages = 0
    for number, batch in enumerate(mine, start=1):
        window = min(
            options.accumulation_steps,
            len(mine) - (number - 1) // options.accumulation_steps * options.accumulation_steps,
        )
        loss = model(**{name: values.to(device) for name, values in batch.items()}).loss
        (loss / window).backward()
        if number % options.accumulation_steps == 0 or number == len(mine):
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % options.local_steps == 0 or number == len(mine):
                average(model)
                averages += 1

    if rank == 0:
        norm = torch.nn.utils.parameters_to_vector(model.parameters()).double().norm()
        print(
            f"{world_size} ranks, {steps} optimizer steps each, {averages} averages, norm of the weights {norm:.6f}"
        )
        if options.output:
            torch.save(model.state_dict(), options.output)
    dist.destroy_process_group()


def join():
    """Make this process a rank of the group that the launcher has described in its environment; returns its device."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if "RANK" not in os.environ:  # started with plain python: a group of one
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    return device


@torch.no_grad()
def average(model):
    """Give every replica the mean of all replicas' parameters: one all-reduce of one flat buffer."""
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())


def parse_options():
    parser = argparse.ArgumentParser(
        description="Local SGD on the course's reviews; start it with torchrun or accelerate launch."
    )
    parser.add_argument("--data", help="your own CSV or JSONL of reviews (default: the course's)")
    parser.add_argument(
        "--reviews", type=int, default=64, help="how many reviews, from the first on"
    )
    parser.add_argument(
        "--micro-batch", type=int, default=4, help="reviews per process and backward pass"
    )
    parser.add_argument(
        "--accumulation-steps", type=int, default=2, help="micro-batches per optimizer step"
    )
    parser.add_argument(
        "--local-steps", type=int, default=3, help="H: optimizer steps between two averages"
    )
    parser.add_argument("--max-length", type=int, default=64, help="tokens per review")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--output", help="where rank 0 saves the averaged weights")
    return parser.parse_args()


if __name__ == "__main__":
    main()
