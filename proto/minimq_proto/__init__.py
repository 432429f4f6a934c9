"""The wire protocol of minimq: `.proto` files and the code generated from them."""
