// A fixed-point vector as int8 numbers with a mantissa and an exponent of their own (integer.py: `code`).
//
// Twice through: while `measure` is high the largest size of what comes is found; `fix`, two cycles later or more, sets
// mantissa and drop, and then every number that comes with `valid` is divided by mantissa * 2^drop / 127 and rounded,
// halves away from 0, a bit a stage. `clear` begins another vector, which is fixed when the last number of the one
// before has come out. LANES numbers a cycle; `out_valid` follows `valid` by nine cycles. The exponent is 16 - drop.
module coder #(
    parameter int LANES = 1
) (
    input  logic               clk,
    input  logic               reset,
    input  logic               clear,
    input  logic               measure,
    input  logic               fix,
    input  logic               valid,
    input  logic [32*LANES-1:0] x,
    output logic [15:0]        mantissa,
    output logic [4:0]         drop,
    output logic               out_valid,
    output logic [8*LANES-1:0] q
);
    // A size of 31 bits, times 254 and the divisor added, fits 40.
    logic [31*LANES-1:0] sizes;
    logic [30:0] most, largest;
    logic [31:0] divisor;
    logic [4:0] bits;
    logic [31:0] more;
    logic [8:0] valid_at;

    always_comb begin
        largest = most;
        for (int l = 0; l < LANES; l++) if (sizes[31*l+:31] > largest) largest = sizes[31*l+:31];
        bits = 5'd0;
        for (int i = 0; i < 31; i++) if (most[i]) bits = 5'(i + 1);
    end

    // Largest size over 2^drop, rounded up.
    assign more = {1'b0, most} + ((32'd1 << drop) - 32'd1);

    always_ff @(posedge clk) begin
        if (reset || clear) most <= '0;
        else if (measure) most <= largest;
        drop <= (bits > 5'd15) ? bits - 5'd15 : 5'd0;
        if (fix) begin
            mantissa <= (most == '0) ? 16'd1 : 16'(more >> drop);
            divisor <= (most == '0) ? 32'd1 : (more >> drop) << drop;
        end

        valid_at <= reset ? '0 : {valid_at[7:0], valid};
    end

    for (genvar l = 0; l < LANES; l++) begin : g_lane
        logic [39:0] rest[0:7];
        logic [6:0] digits[0:7];
        logic [7:0] negative_at;
        logic [31:0] number;
        logic [30:0] size;
        assign number = x[32*l+:32];
        assign size = number[31] ? 31'(-number) : number[30:0];
        assign sizes[31*l+:31] = size;
        always_ff @(posedge clk) begin
            negative_at <= {negative_at[6:0], number[31]};
            rest[0] <= 40'(size) * 40'd254 + 40'(divisor);
            digits[0] <= '0;
            for (int i = 1; i <= 7; i++) begin
                // The divisor is doubled, as 254 is 2 * 127.
                if (rest[i-1] >= 40'(divisor) << (8 - i)) begin
                    rest[i] <= rest[i-1] - (40'(divisor) << (8 - i));
                    digits[i] <= {digits[i-1][5:0], 1'b1};
                end else begin
                    rest[i] <= rest[i-1];
                    digits[i] <= {digits[i-1][5:0], 1'b0};
                end
            end
            q[8*l+:8] <= negative_at[7] ? -{1'b0, digits[7]} : {1'b0, digits[7]};
        end
    end

    assign out_valid = valid_at[8];
endmodule
