# %% [markdown]
# # A topic in a notebook
# VS Code, Jupyter with jupytext, and others open this file as a notebook; `python examples/notebook.py` runs all of it.
# It needs `pip install 'minimq[spark]' pandas`. The cluster is one of this machine: give the address of yours instead.

# %%
import json

import pandas as pd

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer

cluster = LocalCluster(brokers=1)
cluster.start()  # ends with the notebook
admin = Admin(cluster.nameserver)
admin.create_topic("orders", queues=2)

# %% [markdown]
# ## Some orders

# %%
with Producer(cluster.nameserver) as producer:
    orders = [{"city": city, "cents": 100 * number} for number in range(500) for city in ("Rome", "Oslo")]
    producer.send_many(Message("orders", json.dumps(order).encode(), tag=str(order["city"])) for order in orders)

# %% [markdown]
# ## A topic is a table
# A consumer without a group reads what you assign to it, commits nothing, and leaves no trace: run this cell as often
# as you like.

# %%
queues = admin.describe_topic("orders").queues
stored = sum(each.max_offset - each.min_offset for each in queues)
rows: list[dict[str, object]] = []
with PullConsumer(cluster.nameserver, start="earliest") as reader:
    reader.assign([each.queue for each in queues])
    while len(rows) < stored:
        rows += [{**json.loads(message.body), "at": message.stored_at} for message in reader.poll(timeout=5)]
table = pd.DataFrame(rows)
print(table.groupby("city").cents.sum())

# %%
admin.close()
cluster.stop()
