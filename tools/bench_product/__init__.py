"""What a user of the whole product gets, on one machine: `make bench-product`."""
