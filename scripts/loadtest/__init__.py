"""What scripts/load_test.py consists of.

options  the command line                        lengths  distributions of lengths
work     what is asked                           dataset  the same from a file
wire     HTTP and event streams                  metrics  the server's /metrics
run      one setting: who asks when, records     slo      bounds on times, goodput
report   figures of a run, tables                compare  two runs, with intervals
plot     SVG charts                              page     the HTML report
stub     a server without a model, for --calibrate and tests"""
