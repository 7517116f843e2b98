"""The modules of scripts/load_test.py.

options  the command line                        lengths  distributions of lengths
work     the requests                            dataset  the same from a file
wire     HTTP and event streams                  metrics  the server's /metrics
run      one setting: schedule, records          slo      bounds on times, goodput
report   metrics of a run, tables                compare  two runs, with intervals
plot     SVG charts                              page     the HTML report
stub     a server without a model, for --calibrate and tests"""
