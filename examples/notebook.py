# %% [markdown]
# # A topic in a notebook
# VS Code, Jupyter with jupytext, and others open this file as a notebook; `python examples/notebook.py` runs all of it.
# It needs `pip install 'minimq[arrow]' pandas`. It starts a local cluster: replace that by the address of yours.

# %%
import json

import pandas as pd

import minimq.arrow
from minimq import Admin, LocalCluster, Message, Producer

cluster = LocalCluster(brokers=1)
cluster.start()  # ends with the notebook
admin = Admin(cluster.nameserver)
admin.create_topic("orders", queues=2)

# %% [markdown]
# ## Some orders

# %%
with Producer(cluster.nameserver) as producer:
    sent = [{"city": city, "cents": 100 * number} for number in range(500) for city in ("Rome", "Oslo")]
    producer.send_many(Message("orders", json.dumps(order).encode(), tag=str(order["city"])) for order in sent)

# %% [markdown]
# ## A topic is a table
# This uses no group and commits nothing: run the cell as often as you like. `start="-24h"` reads only the last day.

# %%
table = minimq.arrow.read_table("orders", cluster.nameserver, columns=["body", "store_timestamp"]).to_pandas()
orders = pd.DataFrame(map(json.loads, table.body)).assign(at=table.store_timestamp)
print(orders.groupby("city").cents.sum())

# %%
admin.close()
cluster.stop()
