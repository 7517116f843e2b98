/* Hexadecimal digits, in both cases. */
#ifndef KVASIR_HEX_H
#define KVASIR_HEX_H

/* 0 to 15; -1: not a hex digit. */
static inline int hex_digit(char c)
{
    int letter = c | 32;
    return c >= '0' && c <= '9' ? c - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

#endif
