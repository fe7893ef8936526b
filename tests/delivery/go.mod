module eventweir.dev/tests/delivery

go 1.26.0
